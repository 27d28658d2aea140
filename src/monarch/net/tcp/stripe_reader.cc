#include "monarch/net/tcp/stripe_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace monarch {

StripeHeader encode_stripe_chunk(uint32_t size, uint64_t number) {
  StripeHeader header{};
  std::memcpy(header.data(), &size, sizeof size);
  std::memcpy(header.data() + 8, &number, sizeof number);
  return header;
}

size_t StripeReader::add() {
  stripes_.emplace_back();
  return stripes_.size() - 1;
}

bool StripeReader::may_read(size_t stripe) const {
  const Stripe& of = stripes_[stripe];
  return of.left == 0 || in_turn(of);
}

bool StripeReader::begin_chunk(Stripe& stripe) {
  stripe.header_size = 0;
  uint32_t zero = 0;
  std::memcpy(&stripe.left, stripe.header.data(), sizeof stripe.left);
  std::memcpy(&zero, stripe.header.data() + 4, sizeof zero);
  std::memcpy(&stripe.number, stripe.header.data() + 8, sizeof stripe.number);
  if (stripe.left == 0 && zero == 0 && stripe.number == 0) return true;
  // What lies behind comes by no other way.
  if (stripe.left != 0 && stripe.left <= kStripeChunkMax && zero == 0 && stripe.number >= next_) return true;
  reader_.fail("it does not say which chunk of the data comes next");
  return false;
}

std::span<std::byte> StripeReader::direct(size_t stripe) {
  const Stripe& of = stripes_[stripe];
  if (of.left == 0 || !in_turn(of) || !reader_.error().empty()) return {};
  const std::span<std::byte> room = reader_.data_direct();
  return room.first(std::min<size_t>(room.size(), of.left));
}

bool StripeReader::took(Stripe& stripe, size_t count, const ChunkReader::Take& take) {
  stripe.left -= static_cast<uint32_t>(count);
  if (stripe.left == 0) ++next_;
  return reader_.data_advance(count, take);
}

// Until the bytes are at their end, or not in turn.
bool StripeReader::read(Stripe& stripe, ByteSpan bytes, const ChunkReader::Take& take) {
  while (!bytes.empty() && reader_.error().empty()) {
    if (stripe.left == 0) {
      const size_t count = std::min(bytes.size(), kStripeHeader - stripe.header_size);
      std::memcpy(stripe.header.data() + stripe.header_size, bytes.data(), count);
      stripe.header_size += count;
      bytes = bytes.subspan(count);
      if (stripe.header_size == kStripeHeader && !begin_chunk(stripe)) return false;
      continue;
    }
    if (!in_turn(stripe)) {
      stripe.early.assign(bytes.begin(), bytes.end());
      return true;
    }
    const std::span<std::byte> room = reader_.data_direct();
    const size_t count = std::min({bytes.size(), room.size(), size_t{stripe.left}});
    std::memcpy(room.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
    if (!took(stripe, count, take)) return false;
  }
  return reader_.error().empty();
}

bool StripeReader::go_on(const ChunkReader::Take& take) {
  const auto ready = [this](const Stripe& stripe) { return !stripe.early.empty() && in_turn(stripe); };
  for (auto it = stripes_.begin(); (it = std::find_if(stripes_.begin(), stripes_.end(), ready)) != stripes_.end();) {
    const std::vector<std::byte> early = std::exchange(it->early, {});
    if (!read(*it, early, take)) return false;
  }
  return reader_.error().empty();
}

bool StripeReader::advance(size_t stripe, size_t count, const ChunkReader::Take& take) {
  return took(stripes_[stripe], count, take) && go_on(take);
}

bool StripeReader::feed(size_t stripe, ByteSpan bytes, const ChunkReader::Take& take) {
  return read(stripes_[stripe], bytes, take) && go_on(take);
}

}  // namespace monarch
