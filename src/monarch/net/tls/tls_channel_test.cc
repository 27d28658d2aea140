#include "monarch/net/tls/tls_channel.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

namespace monarch {
namespace {

// Two ends in memory: what one writes the other reads, as much at a time as it is given, and changed if that is wanted.
class Pipe final : public Channel {
 public:
  int fd() const override { return -1; }
  ssize_t write(std::span<const iovec> pieces) override {
    size_t taken = 0;
    for (const iovec& piece : pieces) {
      const auto* data = static_cast<const std::byte*>(piece.iov_base);
      const size_t count = std::min(piece.iov_len, room - std::min(room, other->come.size()));
      other->come.insert(other->come.end(), data, data + count);
      taken += count;
    }
    if (taken == 0) return errno = EAGAIN, -1;
    return static_cast<ssize_t>(taken);
  }
  ssize_t read(std::span<const iovec> into) override {
    ++reads;
    if (come.empty() && ended) return 0;
    const size_t count = std::min({into[0].iov_len, portion, come.size()});
    drained = count != 0 && count < into[0].iov_len && come.size() == count;
    const auto end = come.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(come.begin(), end, static_cast<std::byte*>(into[0].iov_base));
    come.erase(come.begin(), end);
    if (count == 0) return errno = EAGAIN, -1;
    return static_cast<ssize_t>(count);
  }

  bool is_drained() const override { return drained; }
  void end_output() override { other->ended = true; }

  Pipe* other = nullptr;
  std::deque<std::byte> come;
  size_t room = SIZE_MAX, portion = SIZE_MAX;
  bool ended = false, drained = false;
  int reads = 0;
};

class TlsPipe : public ::testing::Test {
 protected:
  void connect(const Credentials& a, const Credentials& b, TlsContext::Trust trust = TlsContext::Trust::kAuthority) {
    auto near = std::make_unique<Pipe>(), far = std::make_unique<Pipe>();
    near_ = near.get();
    far_ = far.get();
    near_->other = far_;
    far_->other = near_;
    a_ = std::make_unique<TlsChannel>(std::move(near), TlsContext::make(a, trust).value(), false);
    b_ = std::make_unique<TlsChannel>(std::move(far), TlsContext::make(b, trust).value(), true);
  }
  // Empty: both are there. Else what went wrong first.
  std::string establish() {
    for (int round = 0; round < 20; ++round) {
      auto a = a_->establish(), b = b_->establish();
      if (!a) return a.error().message;
      if (!b) return b.error().message;
      if (*a && *b) return "";
    }
    return "it takes too long";
  }
  static ssize_t write(Channel& channel, std::span<const std::byte> bytes) {
    const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return channel.write({&piece, 1});
  }
  static ssize_t read(Channel& channel, std::span<std::byte> bytes) {
    const iovec piece{bytes.data(), bytes.size()};
    return channel.read({&piece, 1});
  }

  const Authority authority_ = Authority::make().value();
  Pipe* near_ = nullptr;
  Pipe* far_ = nullptr;
  std::unique_ptr<TlsChannel> a_, b_;
};

TEST_F(TlsPipe, IsMadeBetweenThoseWhoKnowTheSameSecret) {
  const auto issued = [](const char* secret) {
    return Authority::of_secret(as_byte_span(secret, 6)).value().issue("a").value();
  };
  connect(issued("secret"), issued("secret"));
  EXPECT_EQ(establish(), "");
  connect(issued("secret"), issued("Secret"));
  EXPECT_NE(establish(), "");
}

TEST_F(TlsPipe, AsksOnceForWhatHasComeAndKnowsThatThereIsNoMore) {
  connect(authority_.issue("a").value(), authority_.issue("b").value());
  ASSERT_EQ(establish(), "");
  std::vector<std::byte> sent(1000), small(600), large(4000);
  EXPECT_LT(read(*b_, large), 0);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(write(*a_, sent), 1000);
    far_->reads = 0;
    EXPECT_EQ(read(*b_, large), 1000);
    EXPECT_TRUE(b_->is_drained());
    EXPECT_EQ(far_->reads, 1);
    EXPECT_LT(read(*b_, large), 0);  // who asks again is told so
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(far_->reads, 2);
  }
  ASSERT_EQ(write(*a_, sent), 1000);
  EXPECT_EQ(read(*b_, small), 600);
  EXPECT_FALSE(b_->is_drained());  // the rest of the record is deciphered, and nobody tells of it
  EXPECT_EQ(read(*b_, small), 400);
  ASSERT_EQ(write(*a_, sent), 1000);
  a_->end_output();
  EXPECT_EQ(read(*b_, large), 1000);
  EXPECT_FALSE(b_->is_drained());  // the end came along
  EXPECT_EQ(read(*b_, large), 0);
}

TEST_F(TlsPipe, CarriesEveryPieceInOrderHoweverLittleRoomThereIs) {
  connect(authority_.issue("a").value(), authority_.issue("b").value());
  ASSERT_EQ(establish(), "");
  EXPECT_EQ(a_->binding(), b_->binding());
  std::mt19937 random(3);
  for (const size_t room : {size_t{100}, size_t{5'000}, size_t{70'000}, SIZE_MAX}) {
    near_->room = room;
    far_->portion = room == SIZE_MAX ? SIZE_MAX : 1 + room / 3;
    std::vector<std::byte> all(room == 100 ? 60'000 : 1'500'000);
    for (std::byte& byte : all) byte = static_cast<std::byte>(random());
    size_t sent = 0, got = 0;
    std::vector<std::byte> heard(all.size());
    while (got < all.size()) {
      // Small pieces and large ones, as a link has them.
      std::vector<iovec> pieces;
      for (size_t at = sent; at < all.size() && pieces.size() < 9;) {
        const size_t size = std::min<size_t>(all.size() - at, 1 + random() % (random() % 2 == 0 ? 60 : 90'000));
        pieces.push_back({all.data() + at, size});
        at += size;
      }
      const ssize_t taken = pieces.empty() ? (a_->flush(), 0) : a_->write(pieces);
      if (taken < 0) {
        ASSERT_EQ(errno, EAGAIN);
      } else {
        sent += static_cast<size_t>(taken);
      }
      const ssize_t count = read(*b_, std::span(heard).subspan(got, std::min<size_t>(heard.size() - got, 100'000)));
      if (count < 0) {
        ASSERT_EQ(errno, EAGAIN);
      } else {
        got += static_cast<size_t>(count);
      }
    }
    ASSERT_EQ(std::memcmp(all.data(), heard.data(), all.size()), 0) << room;
    EXPECT_TRUE(a_->flush());
    EXPECT_FALSE(a_->wants_room());
  }
}

// As between a script and a host that it reaches by way of another one.
TEST_F(TlsPipe, OverAnotherOneItTellsWhatThatHasToTell) {
  connect(authority_.issue("a").value(), authority_.issue("b").value());
  const auto over = [this](std::unique_ptr<TlsChannel>& under, bool accepts) {
    auto context = TlsContext::make(authority_.issue("c").value()).value();
    under = std::make_unique<TlsChannel>(std::move(under), std::move(context), accepts);
  };
  over(a_, false);
  over(b_, true);
  ASSERT_EQ(establish(), "");
  // What has not left the lower one is not on its way.
  near_->room = 100;
  const std::vector<std::byte> bytes(30'000, std::byte{7});
  ASSERT_EQ(write(*a_, bytes), 30'000);
  EXPECT_TRUE(a_->wants_room());
  EXPECT_FALSE(a_->flush());
  far_->room = near_->room = SIZE_MAX;
  EXPECT_TRUE(a_->flush());
  EXPECT_FALSE(a_->wants_room());
  // What has come to the lower one is there, though nothing more is below.
  std::vector<std::byte> heard(30'000);
  size_t got = 0;
  while (got < heard.size()) {
    EXPECT_TRUE(!far_->come.empty() || b_->has_input()) << got;
    const ssize_t count = read(*b_, std::span(heard).subspan(got, std::min<size_t>(700, heard.size() - got)));
    ASSERT_GT(count, 0);
    got += static_cast<size_t>(count);
  }
  EXPECT_EQ(heard, bytes);
  EXPECT_FALSE(b_->has_input());
}

// Whoever writes on all the same, though what is written never goes all at once.
TEST_F(TlsPipe, WhatHasGoneTakesNoMemory) {
  connect(authority_.issue("a").value(), authority_.issue("b").value());
  ASSERT_EQ(establish(), "");
  const std::vector<std::byte> bytes(100'000, std::byte{7});
  std::vector<std::byte> heard(100'000);
  near_->room = far_->room = 50'000;
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  for (size_t passed = 0; passed < 40'000'000;) {
    static_cast<void>(write(*a_, bytes));
    if (const ssize_t count = read(*b_, heard); count > 0) passed += static_cast<size_t>(count);
  }
  EXPECT_LT(mallinfo2().uordblks + mallinfo2().hblkhd, before + (4 << 20));
}

TEST_F(TlsPipe, AChangedByteEndsItAndIsNeverRead) {
  connect(authority_.issue("a").value(), authority_.issue("b").value());
  ASSERT_EQ(establish(), "");
  const std::vector<std::byte> bytes(1000, std::byte{7});
  ASSERT_EQ(write(*a_, bytes), 1000);
  far_->come[far_->come.size() / 2] ^= std::byte{1};
  std::vector<std::byte> heard(2000);
  EXPECT_EQ(read(*b_, heard), -1);
  EXPECT_EQ(errno, EPROTO);
  ASSERT_TRUE(b_->fault().has_value());
  EXPECT_NE(b_->fault()->message.find("TLS with the peer has ended: "), std::string::npos);
}

TEST_F(TlsPipe, WhatWasWrittenBeforeItsEndComesBeforeItsEnd) {
  connect(authority_.issue("a").value(), authority_.issue("b").value());
  ASSERT_EQ(establish(), "");
  const std::vector<std::byte> all(100'000, std::byte{7});
  near_->room = 1000;
  ASSERT_EQ(write(*a_, all), static_cast<ssize_t>(all.size()));
  a_->end_output();
  EXPECT_TRUE(a_->wants_room());
  size_t come = 0;
  std::vector<std::byte> bytes(4096);
  for (ssize_t count = -1; count != 0;) {
    count = read(*b_, bytes);
    if (count > 0) come += static_cast<size_t>(count);
    if (count < 0) {
      ASSERT_EQ(errno, EAGAIN);
      ASSERT_TRUE(a_->wants_room());
      static_cast<void>(a_->flush());
    }
  }
  EXPECT_EQ(come, all.size());
  EXPECT_FALSE(a_->wants_room());
  EXPECT_TRUE(far_->ended) << "that, too, is said below";
}

TEST_F(TlsPipe, AnEndThatIsNotSaidIsAnEnd) {
  connect(authority_.issue("a").value(), authority_.issue("b").value());
  ASSERT_EQ(establish(), "");
  far_->ended = true;
  std::vector<std::byte> heard(10);
  EXPECT_EQ(read(*b_, heard), 0);
  EXPECT_FALSE(b_->fault().has_value());
}

TEST_F(TlsPipe, WhoseCertificateIsOfAnotherAuthorityIsRefused) {
  const Authority other = Authority::make().value();
  connect(authority_.issue("a").value(), other.issue("b").value());
  EXPECT_NE(establish().find("the peer's certificate is not one of this job's"), std::string::npos);
  connect(authority_.issue("a").value(), other.issue("b").value(), TlsContext::Trust::kAnybody);
  EXPECT_EQ(establish(), "");
}

TEST_F(TlsPipe, WhoHasBytesThatAreNoTlsIsRefused) {
  connect(authority_.issue("a").value(), authority_.issue("b").value());
  for (int i = 0; i < 200; ++i) far_->come.push_back(static_cast<std::byte>(i * 37));
  EXPECT_NE(establish().find("TLS with the peer cannot begin"), std::string::npos);
}

}  // namespace
}  // namespace monarch
