// One suite over every transport. A transport gives a Pair: two ends of one link in this process, each with a sink that
// records, and a way to wait. Instantiate it with
//
//   INSTANTIATE_TEST_SUITE_P(Shm, LinkSuite, ::testing::Values(&make_shm_pair), ...);
//
// What needs two processes (a peer killed in the middle) is in link_process_test.cc.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "monarch/net/link.h"
#include "monarch/testing/bytes.h"
#include "monarch/testing/home.h"

namespace monarch::testing {

// Records what arrives.
class RecordingSink final : public LinkSink {
 public:
  void on_frame(Link&, MessagePtr message) override {
    if (each_frame_) each_frame_(*message);
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(closed_) << "a frame after the end";
    frames_.push_back(std::move(message));
  }
  void on_control(Link&, MessagePtr message) override {
    std::lock_guard lock(mutex_);
    controls_.push_back(std::move(message));
    frames_before_control_ = frames_.size();
  }
  void on_closed(Link&, const Error& why) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(closed_) << "on_closed twice";
    closed_ = true;
    why_ = why;
  }
  size_t frames() const { return locked([&] { return frames_.size(); }); }
  size_t controls() const { return locked([&] { return controls_.size(); }); }
  size_t frames_before_control() const { return locked([&] { return frames_before_control_; }); }
  bool closed() const { return locked([&] { return closed_; }); }
  Error why() const { return locked([&] { return why_; }); }
  std::vector<MessagePtr> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(frames_, {});
  }
  std::vector<MessagePtr> take_controls() {
    std::lock_guard lock(mutex_);
    return std::exchange(controls_, {});
  }
  // While nothing can arrive.
  void on_each_frame(std::function<void(const Message&)> call) { each_frame_ = std::move(call); }

 private:
  template <typename F>
  std::invoke_result_t<F> locked(F f) const {
    std::lock_guard lock(mutex_);
    return f();
  }
  std::function<void(const Message&)> each_frame_;
  mutable std::mutex mutex_;
  std::vector<MessagePtr> frames_;
  std::vector<MessagePtr> controls_;
  size_t frames_before_control_ = 0;
  bool closed_ = false;
  Error why_;
};

// Two ends of one link. Destroyed links first, then what they run on.
class LinkPair {
 public:
  virtual ~LinkPair() = default;
  virtual Link& a() = 0;
  virtual Link& b() = 0;
  // Lets time pass until ready() is true.
  virtual bool wait_until(const std::function<bool()>& ready) = 0;
  // Nobody takes what comes for `b`, from now on until resume_b(). False: this transport cannot be held.
  virtual bool hold_b() { return false; }
  virtual void resume_b() {}
  virtual void poll_b() {}  // one look at what has come for b
  virtual bool threads_may_send() const { return true; }
  // The sender's arena, if there is one.
  virtual Arena* arena_a() { return nullptr; }
  // Writes these bytes where b reads frames, past every check of the sender. False: there is no such place.
  virtual bool inject_garbage(ByteSpan) { return false; }
  // The same for control frames.
  virtual bool inject_control(ByteSpan) { return false; }
  virtual void want_wire() {}  // one of these will be called

  RecordingSink sink_a, sink_b;
};

class LinkSuite : public ::testing::TestWithParam<std::unique_ptr<LinkPair> (*)()> {
 protected:
  void SetUp() override { pair_ = GetParam()(); }

  static bool send(Link& link, uint64_t token, ByteSpan body, std::span<const ByteSpan> parts = {}) {
    Outgoing outgoing{FrameHeader{}, body, parts};
    outgoing.header.token = token;
    return link.send(outgoing);
  }
  Link& a() { return pair_->a(); }
  Link& b() { return pair_->b(); }
  RecordingSink& at_a() { return pair_->sink_a; }
  RecordingSink& at_b() { return pair_->sink_b; }
  bool wait_until(const std::function<bool()>& ready) { return pair_->wait_until(ready); }

  std::unique_ptr<LinkPair> pair_;
};

}  // namespace monarch::testing
