// The stripes of a link over TCP: how a connection becomes one, and what is read of them.
#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "monarch/base/forked.h"
#include "monarch/base/system.h"
#include "monarch/net/tcp/tcp_channel.h"
#include "monarch/net/tcp/tcp_link.h"

namespace monarch {

std::optional<int> TcpLink::stripes_from(const char* text) {
  if (text == nullptr) return kAsNeeded;
  const std::string_view digits(text);
  int count = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), count);
  const bool whole = error == std::errc() && end == digits.end();
  return whole && count >= 0 && count <= kStripesMax ? std::optional(count) : std::nullopt;
}

size_t TcpLink::stripe_count() const {
  std::lock_guard lock(write_mutex_);
  return stripes_.size();
}

// ---- A link that becomes one ----

// Both ends say a word behind their last chunk. Who has heard the other's has a connection on which nothing else is.
bool TcpLink::become_stripe_of(const std::shared_ptr<Link>& link) {
  if (link == nullptr) {
    unwanted_ = true;
    return false;
  }
  auto of = std::dynamic_pointer_cast<TcpLink>(link);
  if (!of || in_forked_child()) return false;
  std::lock_guard lock(write_mutex_);
  if (stopped_ || stripe_of_) return false;
  if (main_ && !sys::leaves_descriptors(main_->out.channel().fd())) return false;
  stripe_of_ = std::move(of);
  say_stripe_ = true;
  if (main_ && !main_->wants_room) flush_main();
  return true;
}

// delivery_mutex_ held. False: nobody has asked for that.
bool TcpLink::said_stripe(ByteSpan rest) {
  if (unwanted_) return true;
  std::lock_guard lock(write_mutex_);
  if (!stripe_of_) return reader_.fail("it is to carry data of another connection, and has not said of which"), false;
  rest_.assign(rest.begin(), rest.end());
  reactor_.post([owner = weak_from_this()] {
    if (auto kept = owner.lock()) kept->hand_over();
  });
  return true;
}

void TcpLink::hand_over() {
  std::shared_ptr<TcpLink> to;
  std::unique_ptr<Stream> stream;
  {
    std::scoped_lock lock(delivery_mutex_, write_mutex_);
    if (stopped_ || finished_) return;
    finished_ = stopped_ = true;
    closed_.store(true, std::memory_order_release);
    to = std::exchange(stripe_of_, nullptr);
    stream = std::move(main_);
    reactor_.remove(stream->out.channel().fd());
  }
  // Our own word went when the connection had nothing else; if it has not, it is no use.
  const bool said = mute_ && stream->out.empty() && !stream->out.channel().wants_room();
  if (said) to->add_stripe(stream->out.take_channel(), rest_);
  over_.store(true, std::memory_order_release);
}

// Reactor. `early` came behind the other end's word.
void TcpLink::add_stripe(std::unique_ptr<Channel> channel, ByteSpan early) {
  std::lock_guard delivery(delivery_mutex_);
  if (stopped_ || finished_ || stripes_.size() == size_t{kStripesMax}) return;
  const size_t index = stripe_reader_.add();
  widen_tcp_socket(channel->fd(), kStripeUnreadBytes);
  {
    std::lock_guard lock(write_mutex_);
    const bool first = stripes_.empty();
    stripes_.push_back(std::make_unique<Stream>(std::move(channel)));
    stripes_.back()->watched = EPOLLIN;
    reactor_.add(stripes_.back()->out.channel().fd(), EPOLLIN, [this, index, owner = weak_from_this()](uint32_t ready) {
      if (auto kept = owner.lock()) on_stripe_events(index, ready);
    });
    if (first) {
      main_->out.add_word(ChunkLane::kStriped);
      if (!main_->wants_room) flush_main();
    }
    flush_stripes();
  }
  striped_bytes_ += early.size();
  if (stripe_reader_.feed(index, early, take_all())) {
    watch_stripes();
    look_at_stripe_later(index);
  } else {
    reactor_.post([owner = weak_from_this(), why = Error{ErrorCode::kMalformed, reader_.error()}] {
      if (auto kept = owner.lock()) kept->finish(why);
    });
  }
}

// ---- Reading ----

void TcpLink::on_stripe_events(size_t index, uint32_t events) {
  if (events & EPOLLOUT) {
    std::lock_guard lock(write_mutex_);
    if (stopped_) return;
    Stream& stripe = *stripes_[index];
    stripe.wants_room = !stripe.out.channel().flush();
    flush_stripes();
    watch(stripe);
  }
  if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
  Error why{ErrorCode::kClosed, "the peer closed the connection"};
  {
    std::lock_guard delivery(delivery_mutex_);
    if (stopped_ || finished_) return;
    const bool broken = (events & (EPOLLERR | EPOLLHUP)) != 0 && is_done(index);
    if (!broken && read_stripe(index, &why) && !(main_->ended && all_done())) return;
    if (stopped_ || finished_) return;
    if (why.code != ErrorCode::kMalformed) drain_stripes();
  }
  if (why.code == ErrorCode::kMalformed) log_malformed(why.message);
  finish(why);
}

// What epoll does not tell of.
void TcpLink::look_at_stripe_later(size_t index) {
  reactor_.post([owner = weak_from_this(), index] {
    if (auto kept = owner.lock()) kept->on_stripe_events(index, EPOLLIN);
  });
}

// delivery_mutex_ held. False: the link is over, because of `why`.
bool TcpLink::read_stripe(size_t index, Error* why) {
  Stream& stripe = *stripes_[index];
  Channel& channel = stripe.out.channel();
  uint64_t bytes = 0;
  while (bytes < kBytesPerEvent && !stripe.ended && !finished_ && stripe_reader_.may_read(index)) {
    const std::span<std::byte> direct = stripe_reader_.direct(index);
    const std::array<iovec, 2> into{iovec{direct.data(), direct.size()}, iovec{spill_.get(), kSpillBytes}};
    const bool worth_it = direct.size() >= kPieceMin;
    const ssize_t count = channel.read(std::span(into).subspan(worth_it ? 0 : 1));
    if (count < 0 && (is_no_room(errno) || is_shortage(errno))) break;
    if (count < 0) return why->message = std::string("the connection broke: ") + std::strerror(errno), false;
    if (count == 0) {
      stripe.ended = true;
      if (!main_->ended) end_after(striped_bytes_);  // usually the first one ends now, too
      break;
    }
    heard_ = stripe.heard = true;
    bytes += static_cast<uint64_t>(count);
    striped_bytes_ += static_cast<uint64_t>(count);
    const size_t placed = worth_it ? std::min(static_cast<size_t>(count), direct.size()) : 0;
    const bool fits = (placed == 0 || stripe_reader_.advance(index, placed, take_all())) &&
                      stripe_reader_.feed(index, {spill_.get(), static_cast<size_t>(count) - placed}, take_all());
    if (!fits) return *why = {ErrorCode::kMalformed, reader_.error()}, false;
    if (channel.is_drained()) break;
  }
  if (!finished_) watch_stripes();
  // Where there was nothing more, what the channel still has is half of something.
  if (bytes >= kBytesPerEvent && channel.has_input()) look_at_stripe_later(index);
  return true;
}

// delivery_mutex_ held. Of those whose chunk is not in turn nothing is to be heard.
void TcpLink::watch_stripes() {
  for (size_t i = 0; i < stripes_.size(); ++i) {
    Stream& stripe = *stripes_[i];
    const bool wanted = !is_done(i);
    if (stripe.wants_input == wanted) continue;  // written here only: who sends, which may take long, is not waited for
    {
      std::lock_guard lock(write_mutex_);
      stripe.wants_input = wanted;
      watch(stripe);
    }
    if (wanted && stripe.out.channel().has_input()) look_at_stripe_later(i);
  }
}

// delivery_mutex_ held: the peer has said that data is striped, and some may have come by then. False: malformed.
bool TcpLink::go_on_striped() {
  if (!stripe_reader_.go_on(take_all())) return false;
  if (!finished_) watch_stripes();
  return true;
}

// ---- The end ----

// delivery_mutex_ held. Of this one nothing can be taken before something else comes, if ever.
bool TcpLink::is_done(size_t index) const { return stripes_[index]->ended || !stripe_reader_.may_read(index); }

bool TcpLink::all_done() const {
  for (size_t i = 0; i < stripes_.size(); ++i) {
    if (!is_done(i)) return false;
  }
  return true;
}

// delivery_mutex_ held. All that has come, though some of them may be broken.
void TcpLink::drain_stripes() {
  const uint64_t begin = striped_bytes_;
  uint64_t before = 0;
  do {
    before = striped_bytes_;
    for (size_t i = 0; i < stripes_.size() && !finished_; ++i) {
      Error ignored;
      if (!read_stripe(i, &ignored)) stripes_[i]->ended = true;
    }
  } while (!finished_ && striped_bytes_ != before && striped_bytes_ - begin < kDrainMax);
}

// delivery_mutex_ held: the first connection has ended. True: there is data under way by the others, which comes first.
bool TcpLink::ends_later() {
  if (finished_ || !reader_.is_striped() || all_done()) return false;
  main_->ended = true;
  {
    std::lock_guard lock(write_mutex_);
    main_->wants_input = false;
    watch(*main_);
  }
  end_after(striped_bytes_);
  return true;
}

// Some connection has ended, so the others are to follow, unless more data comes.
void TcpLink::end_after(uint64_t striped_bytes) {
  reactor_.after(kLingerNs, [owner = weak_from_this(), striped_bytes] {
    auto kept = owner.lock();
    if (!kept || kept->finished_) return;
    if (kept->striped_bytes_ != striped_bytes) return kept->end_after(kept->striped_bytes_);
    kept->finish({ErrorCode::kClosed, "one of its connections has ended"});
  });
}

}  // namespace monarch
