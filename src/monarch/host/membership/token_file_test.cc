#include "monarch/host/membership/token_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace monarch {
namespace {

namespace fs = std::filesystem;

class TokenFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/monarch-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    base_ = folder;
    folder_ = base_ + "/monarch";
    path_ = folder_ + "/abcd";
    token_.fill(std::byte{0x5a});
  }
  void TearDown() override { fs::remove_all(base_); }
  static mode_t mode(const std::string& path) {
    struct stat info;
    return lstat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
  }
  std::string write_error() const {
    const Status done = write_token_file(path_, token_);
    return done ? "written" : done.error().message;
  }
  std::string read_error() const {
    const auto token = read_token_file(path_);
    return token ? "read" : token.error().message;
  }

  std::string base_, folder_, path_;
  JobToken token_;
};

TEST_F(TokenFile, IsForThisUserOnlyAndComesBack) {
  const mode_t before = umask(0);
  ASSERT_EQ(write_error(), "written");
  umask(before);
  EXPECT_EQ(mode(folder_), 0700u);
  EXPECT_EQ(mode(path_), 0600u);
  auto token = read_token_file(path_);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(*token, token_);
  EXPECT_EQ(write_error(), "written");
}

TEST_F(TokenFile, TakesItsFolderWithItUnlessSomethingElseIsInThere) {
  ASSERT_EQ(write_error(), "written");
  ASSERT_TRUE(write_token_file(folder_ + "/other", token_).ok());
  remove_token_file(path_);
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_TRUE(fs::exists(folder_ + "/other"));
  remove_token_file(folder_ + "/other");
  EXPECT_FALSE(fs::exists(folder_));
  remove_token_file(path_);
  EXPECT_EQ(read_token_file(path_).error().code, ErrorCode::kClosed);
}

TEST_F(TokenFile, IsRefusedIfOthersCouldHaveReadOrWrittenIt) {
  ASSERT_EQ(write_error(), "written");
  chmod(path_.c_str(), 0640);
  EXPECT_NE(read_error().find("is open to other users (its mode is 0640)"), std::string::npos) << read_error();
  EXPECT_NE(write_error().find("is open to other users"), std::string::npos) << write_error();
  chmod(path_.c_str(), 0600);
  chmod(folder_.c_str(), 0775);
  EXPECT_NE(read_error().find("is open to other users (its mode is 0775)"), std::string::npos) << read_error();
  EXPECT_NE(read_error().find("chmod 700"), std::string::npos) << read_error();
  EXPECT_NE(write_error().find("is open to other users"), std::string::npos) << write_error();
  chmod(folder_.c_str(), 0755);  // as home directories are
  EXPECT_EQ(write_error(), "written");
  EXPECT_EQ(read_error(), "read");
}

TEST_F(TokenFile, IsRefusedIfItBelongsToSomebodyElse) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(write_error(), "written");
  ASSERT_EQ(chown(path_.c_str(), 65534, 0), 0);
  EXPECT_NE(read_error().find("belongs to the user with id 65534"), std::string::npos) << read_error();
  EXPECT_NE(write_error().find("belongs to the user with id 65534"), std::string::npos) << write_error();
  ASSERT_EQ(chown(path_.c_str(), 0, 0), 0);
  ASSERT_EQ(chown(folder_.c_str(), 65534, 0), 0);
  EXPECT_NE(read_error().find("set XDG_RUNTIME_DIR"), std::string::npos) << read_error();
  EXPECT_NE(write_error().find("set XDG_RUNTIME_DIR"), std::string::npos) << write_error();
}

TEST_F(TokenFile, IsRefusedIfItIsALinkOrNoFileOrHoldsNoToken) {
  ASSERT_EQ(write_error(), "written");
  for (const char* content : {"", "short", "seventeen letters"}) {
    std::ofstream(path_) << content;
    EXPECT_NE(read_error().find("holds no token"), std::string::npos) << read_error();
  }
  fs::remove(path_);
  ASSERT_TRUE(write_token_file(folder_ + "/other", token_).ok());
  fs::create_symlink(folder_ + "/other", path_);
  EXPECT_NE(read_error().find("is a link"), std::string::npos) << read_error();
  EXPECT_NE(write_error().find("is a link"), std::string::npos) << write_error();
  fs::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);  // nobody waits for its other end
  EXPECT_NE(read_error().find("is not what it should be"), std::string::npos) << read_error();
  fs::remove_all(folder_);
  fs::create_directory_symlink(base_, folder_);
  EXPECT_NE(read_error().find("is not a folder"), std::string::npos) << read_error();
  EXPECT_NE(write_error().find("is not a folder"), std::string::npos) << write_error();
}

TEST_F(TokenFile, IsWrittenThoughAnotherJobTakesTheFolderAwayMeanwhile) {
  std::thread other([&] {
    for (int i = 0; i < 500; ++i) {
      EXPECT_TRUE(write_token_file(folder_ + "/other", token_).ok());
      remove_token_file(folder_ + "/other");
    }
  });
  for (int i = 0; i < 500; ++i) {
    ASSERT_EQ(write_error(), "written");
    ASSERT_EQ(read_error(), "read");
    remove_token_file(path_);
  }
  other.join();
}

TEST(RuntimeFolder, IsTheUsersOwn) {
  const std::string fallback = "/tmp/monarch-" + std::to_string(geteuid());
  const char* set = getenv("XDG_RUNTIME_DIR");
  const std::string before = set == nullptr ? "" : set;
  char folder[] = "/tmp/monarch-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  setenv("XDG_RUNTIME_DIR", folder, 1);
  EXPECT_EQ(runtime_folder(), std::string(folder) + "/monarch");
  if (geteuid() == 0) {
    ASSERT_EQ(chown(folder, 65534, 0), 0);
    EXPECT_EQ(runtime_folder(), fallback);
  }
  rmdir(folder);
  EXPECT_EQ(runtime_folder(), fallback);
  setenv("XDG_RUNTIME_DIR", "relative", 1);
  EXPECT_EQ(runtime_folder(), fallback);
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(runtime_folder(), fallback);
  if (set != nullptr) setenv("XDG_RUNTIME_DIR", before.c_str(), 1);
}

}  // namespace
}  // namespace monarch
