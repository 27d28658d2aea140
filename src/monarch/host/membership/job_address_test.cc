#include "monarch/host/membership/job_address.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "monarch/base/system.h"

namespace monarch {
namespace {

JobAddress example() {
  JobAddress address;
  address.job.fill(std::byte{0xab});
  address.script = 0x1122334455667788;
  address.script_pid = 4711;
  address.user = 1000;
  address.machine = "9f/4026531833";
  address.host = "node7";
  address.folder = "/run/user/1000/a folder";
  return address;
}

TEST(JobAddress, IsOneLineAndComesBack) {
  const std::string text = example().to_text();
  EXPECT_EQ(text, "monarch-job-1 abababababababababababababababab 8877665544332211 4711 1000 9f/4026531833 node7 "
                  "/run/user/1000/a folder");
  auto back = JobAddress::parse(text);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, example());
  EXPECT_EQ(back->token_path(), "/run/user/1000/a folder/abababababababababababababababab");
  EXPECT_EQ(back->name(), "job abababab (its script has pid 4711)");
}

TEST(JobAddress, AnythingElseIsRefused) {
  const std::string text = example().to_text();
  for (size_t size = 0; size < text.find(" /") + 2; ++size) {
    EXPECT_FALSE(JobAddress::parse(text.substr(0, size)).ok()) << text.substr(0, size);
  }
  const auto with = [&](const std::string& old, const std::string& other) {
    std::string changed = text;
    changed.replace(changed.find(old), old.size(), other);
    return JobAddress::parse(changed);
  };
  EXPECT_FALSE(with("-1 ", "-2 ").ok());
  EXPECT_FALSE(with("abab", "ABAB").ok());
  EXPECT_FALSE(with("8877665544332211", "0000000000000000").ok());
  EXPECT_FALSE(with("4711", "47x1").ok());
  EXPECT_FALSE(with(" 1000 ", " -1 ").ok());
  EXPECT_FALSE(with(" 1000 ", " 4294967296 ").ok());
  EXPECT_FALSE(with("node7", "").ok());
  EXPECT_FALSE(with("/run", "run").ok());
  EXPECT_FALSE(with("/run", std::string("/r\0n", 4)).ok());
  EXPECT_FALSE(JobAddress::parse(text + std::string(10'000, 'x')).ok());
  EXPECT_EQ(JobAddress::parse("").error().code, ErrorCode::kMalformed);
}

TEST(JobAddress, OfThisScriptIsUsableHereAndNotElsewhere) {
  JobAddress here = JobAddress::of_this_script(JobId{}, 5).value();
  EXPECT_TRUE(here.check_here().ok());
  EXPECT_EQ(here.script_pid, getpid());
  EXPECT_EQ(*JobAddress::parse(here.to_text()), here);
  JobAddress elsewhere = here;
  elsewhere.machine = "x";
  elsewhere.host = "node7";
  EXPECT_NE(elsewhere.check_here().error().message.find("on 'node7'"), std::string::npos);
  JobAddress of_another = here;
  of_another.user += 1;
  EXPECT_NE(of_another.check_here().error().message.find("Use it as the same user"), std::string::npos);
}

TEST(JobAddress, AShortageDoesNotMakeThisAnotherMachine) {
  const JobAddress here = JobAddress::of_this_script(JobId{}, 5).value();
  sys::fail_nth(1);
  const Status checked = here.check_here();
  sys::fail_nth(0);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().message.rfind("cannot find out which machine this is: out of file descriptors", 0), 0u)
      << checked.error().message;
}

TEST(MachineId, IsOneWordAndStays) {
  EXPECT_EQ(*machine_id(), *machine_id());
  EXPECT_FALSE(machine_id()->empty());
  EXPECT_EQ(machine_id()->find(' '), std::string::npos);
}

}  // namespace
}  // namespace monarch
