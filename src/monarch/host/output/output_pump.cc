#include "monarch/host/output/output_pump.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "monarch/base/bytes.h"
#include "monarch/base/check.h"
#include "monarch/base/clock.h"

namespace monarch {

namespace {

constexpr size_t kReadBytes = 64 << 10;         // what a pipe holds
static_assert(kReadBytes >= OutputRequest::kBytesMax);
constexpr size_t kWaitingBytesMax = 256 << 10;  // of lines: then they are written before more is read
constexpr int64_t kRecentNs = 1'000'000'000;
constexpr int64_t kRoomLookNs = 100'000'000;  // the script's stdout may have been redirected meanwhile
constexpr auto kCatchUpLimit = std::chrono::milliseconds(50);
// A pipe that is being filled is left alone for a while: each read of a few lines would cost its writer a wake-up.
constexpr int64_t kPauseFirstNs = 50'000;
constexpr int64_t kPauseMaxNs = 1'000'000;
constexpr int kQuickTurns = 2;  // so often in a row nobody is left alone
// How often the pipes are emptied at the end. What a worker has started may hold one open, and write into it, for ever.
constexpr int kLastTurns = 32;
// A call that took less cannot have printed: the write, and the wake-up of this thread, take longer.
constexpr int64_t kPrintingCallNs = 6'000;
// Where answers come without a wait, a thread looks about every 20 us: less than a hundredth of its time.
constexpr uint64_t kLookTicks = 50'000;
constexpr size_t kTailBytesMax = 60 << 10;  // fits into the pipe that it is answered on

timespec to_timespec(int64_t ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }

std::string this_host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

void wait_for_room_of(const LineWriter& writer) {
  pollfd room{writer.fd(), POLLOUT, 0};
  const timespec limit = to_timespec(kRoomLookNs);
  ppoll(&room, 1, &limit, nullptr);
}

}  // namespace

OutputPump::OutputPump(int out_fd, int err_fd, std::string host_name)
    : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      ready_(epoll_create1(EPOLL_CLOEXEC)),
      speakers_(std::move(host_name)),
      writers_{LineWriter(out_fd), LineWriter(err_fd)},
      scratch_(kReadBytes) {}

Result<std::unique_ptr<OutputPump>> OutputPump::make(int out_fd, int err_fd) {
  std::unique_ptr<OutputPump> pump(new OutputPump(out_fd, err_fd, this_host_name()));
  int pair[2];
  if (!pump->wake_ || !pump->ready_ || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
    return Error{ErrorCode::kUnavailable, std::string("cannot show what workers print: ") + std::strerror(errno)};
  }
  pump->sockets_[0].reset(pair[0]);
  pump->sockets_[1].reset(pair[1]);
  // Among the pipes, so that who looks whether the pump is behind sees pipes that it does not know yet.
  epoll_event event{};
  event.events = EPOLLIN;
  MONARCH_CHECK(epoll_ctl(pump->ready_.get(), EPOLL_CTL_ADD, pair[0], &event) == 0);
  return pump;
}

OutputPump::~OutputPump() { finish(); }

UniqueFd OutputPump::route_socket() const { return UniqueFd(fcntl(sockets_[1].get(), F_DUPFD_CLOEXEC, 3)); }

void OutputPump::start() {
  if (started_.load()) return;
  std::lock_guard lock(mutex_);
  if (over_ || started_.exchange(true)) return;
  sigset_t all, previous;  // signals stay with the main thread; a reader that goes away is EPIPE
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

void OutputPump::finish() {
  {
    std::lock_guard lock(mutex_);
    if (!started_) over_ = true;
  }
  if (!thread_.joinable()) return;
  finishing_ = true;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void OutputPump::after_fork_in_child() {
  for (auto& [node, speaker] : speakers_.all()) {
    for (SpeakerStream& stream : speaker->streams) stream.pipe.reset();
    speaker->log_file.reset();
  }
  for (UniqueFd* fd : {&sockets_[0], &sockets_[1], &wake_, &ready_}) fd->reset();
  started_ = false;
  over_ = true;
  mutex_.unlock();
}

bool OutputPump::is_behind() {
  if (!started_.load(std::memory_order_relaxed)) return false;
  // In this order: what is in no pipe any more has been read, and then the pump is busy until it is out.
  epoll_event ignored;
  return epoll_wait(ready_.get(), &ignored, 1, 0) > 0 || busy_.load(std::memory_order_seq_cst);
}

bool OutputPump::is_behind_after(int64_t waited_ns) {
  thread_local uint64_t looked_ticks = 0;
  if (waited_ns < kPrintingCallNs && !recent_.load(std::memory_order_relaxed)) {
    const uint64_t now_ticks = cpu_ticks();
    if (now_ticks - looked_ticks < kLookTicks) return false;
    looked_ticks = now_ticks;
  }
  return is_behind();
}

void OutputPump::catch_up() {
  std::unique_lock lock(mutex_);
  if (!started_ || blocked_ || over_) return;
  const uint64_t mine = ++wanted_;
  eventfd_write(wake_.get(), 1);
  caught_up_.wait_for(lock, kCatchUpLimit, [&] { return handled_ >= mine || blocked_ || over_; });
}

// ---- The pump's thread ----

void OutputPump::run() {
  pthread_setname_np(pthread_self(), "monarch-output");
  while (!finishing_) {
    wait_for_work();
    take_requests();
    flush_folds(monotonic_ns());
    turn();
  }
  end();
  std::lock_guard lock(mutex_);
  over_ = true;
  caught_up_.notify_all();
}

// What dead workers have left in their pipes, and lines without an end.
void OutputPump::end() {
  take_requests();
  for (int turns = 0; turns < kLastTurns; ++turns) {
    const bool empty = !turn() && parked_.empty();  // room brings the parked ones back: they may hold something
    wait_for_room();
    if (empty) break;
  }
  for (auto& [node, speaker] : speakers_.all()) {
    for (SpeakerStream& stream : speaker->streams) {
      stream.splitter.finish([&](std::string_view line) { show(stream, line); });
      write_log_file(*speaker);
      announce_dropped(stream);
    }
  }
  flush_folds(INT64_MAX);
  wait_for_room();
}

void OutputPump::wait_for_work() {
  int64_t limit_ns = recent_.load(std::memory_order_relaxed) ? kRecentNs : INT64_MAX;
  pollfd fds[] = {{wake_.get(), POLLIN, 0},
                  {sockets_[0].get(), POLLIN, 0},
                  {pause_ns_ == 0 ? ready_.get() : -1, POLLIN, 0},
                  {-1, POLLOUT, 0},
                  {-1, POLLOUT, 0}};
  if (pause_ns_ != 0) limit_ns = std::min(limit_ns, pause_ns_);
  for (int i = 0; i < kStreams; ++i) {
    if (!stuck_[i]) continue;
    fds[3 + i].fd = writers_[i].fd();
    limit_ns = std::min(limit_ns, kRoomLookNs);
  }
  for (const auto& mesh : folding_) {
    for (const SpeakerMesh::Fold& each : mesh->folds) {
      if (!each.lines.empty()) limit_ns = std::min(limit_ns, std::max<int64_t>(each.due_ns - monotonic_ns(), 0));
    }
  }
  const timespec limit = to_timespec(limit_ns);
  const int found = ppoll(fds, std::size(fds), limit_ns == INT64_MAX ? nullptr : &limit, nullptr);
  if (found == 0 && limit_ns == kRecentNs) recent_.store(false, std::memory_order_relaxed);
  if ((fds[0].revents & POLLIN) != 0) {
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
  }
}

// Reads once from each pipe that holds something, and writes what can be written. False: they were empty.
bool OutputPump::turn() {
  const uint64_t wanted = wanted_.load(std::memory_order_seq_cst);
  busy_.store(true, std::memory_order_seq_cst);
  events_.resize(std::max<size_t>(64, kStreams * speakers_.all().size()));
  const int count = epoll_wait(ready_.get(), events_.data(), static_cast<int>(events_.size()), 0);
  size_t most = 0;
  bool any = false;
  for (int i = 0; i < count; ++i) {
    if (events_[static_cast<size_t>(i)].data.ptr == nullptr) continue;  // requests: they wait for take_requests()
    any = true;
    auto& stream = *static_cast<SpeakerStream*>(events_[static_cast<size_t>(i)].data.ptr);
    const OutputStream which = stream.which;
    if (is_stuck(which) && !stream.speaker->options.drop) {
      park(stream);
      continue;
    }
    most = std::max(most, read_stream(stream));
    if (!is_stuck(which) && writer(which).waiting_bytes() > kWaitingBytesMax) flush(which);
  }
  flush(OutputStream::kStdout);
  flush(OutputStream::kStderr);
  choose_pause(most);
  if (most != 0) recent_.store(true, std::memory_order_relaxed);
  publish(wanted);
  return any;
}

// Nothing: whatever comes next is shown at once. Something, time and again: pipes may fill to about a half meanwhile.
void OutputPump::choose_pause(size_t most_bytes) {
  if (most_bytes == 0) {
    pause_ns_ = 0;
    busy_turns_ = 0;
  } else if (++busy_turns_ > kQuickTurns) {
    if (most_bytes < kReadBytes / 4) pause_ns_ = std::clamp(2 * pause_ns_, kPauseFirstNs, kPauseMaxNs);
    if (most_bytes > kReadBytes / 2) pause_ns_ = pause_ns_ / 2 < kPauseFirstNs ? 0 : pause_ns_ / 2;
  }
}

// Tells those who want to be caught up.
void OutputPump::publish(uint64_t wanted) {
  const bool blocked = is_stuck(OutputStream::kStdout) || is_stuck(OutputStream::kStderr);
  if (!blocked) busy_.store(false, std::memory_order_seq_cst);
  if (wanted == published_ && blocked == published_blocked_) return;
  std::lock_guard lock(mutex_);
  handled_ = published_ = wanted;
  blocked_ = published_blocked_ = blocked;
  caught_up_.notify_all();
}

// ---- From the pipes to lines ----

// -> bytes read; the stream may be gone afterwards.
size_t OutputPump::read_stream(SpeakerStream& stream) {
  ssize_t count;
  do {
    count = ::read(stream.pipe.get(), scratch_.data(), scratch_.size());
  } while (count < 0 && errno == EINTR);
  if (count < 0 && errno == EAGAIN) return 0;
  if (count <= 0) {
    end_stream(stream);
    return 0;
  }
  const std::string_view bytes(scratch_.data(), static_cast<size_t>(count));
  stream.tail.add(bytes);
  stream.splitter.feed(bytes, [&](std::string_view line) { show(stream, line); });
  write_log_file(*stream.speaker);
  return bytes.size();
}

void OutputPump::end_stream(SpeakerStream& stream) {
  Speaker& speaker = *stream.speaker;
  stream.splitter.finish([&](std::string_view line) { show(stream, line); });
  announce_dropped(stream);
  write_log_file(speaker);
  std::erase(parked_, &stream);
  std::lock_guard lock(mutex_);
  // Not left to close(): a child that was just forked may have the pipe for a moment longer, and epoll with it.
  epoll_ctl(ready_.get(), EPOLL_CTL_DEL, stream.pipe.get(), nullptr);
  stream.pipe.reset();
  for (const SpeakerStream& each : speaker.streams) {
    if (each.pipe) return;
  }
  speakers_.remove(speaker);
}

void OutputPump::show(SpeakerStream& stream, std::string_view line) {
  Speaker& speaker = *stream.speaker;
  if (speaker.log_file) log_text_.append(line).push_back('\n');
  if (speaker.options.window_ns != 0) return fold(speaker, stream.which, line);
  LineWriter& to = writer(stream.which);
  if (speaker.options.drop && is_stuck(stream.which) && to.waiting_bytes() > kWaitingBytesMax) {
    ++stream.dropped;
    return;
  }
  announce_dropped(stream);
  to.add(speakers_.prefix(speaker), line);
}

void OutputPump::announce_dropped(SpeakerStream& stream) {
  if (stream.dropped == 0) return;
  const char* name = stream.which == OutputStream::kStdout ? "stdout" : "stderr";
  writer(stream.which)
      .add(speakers_.prefix(*stream.speaker), "monarch: " + std::to_string(std::exchange(stream.dropped, 0)) +
                                                  " lines were dropped here: the reader of the script's " + name +
                                                  " is too slow");
}

// ---- Folded lines ----

void OutputPump::fold(Speaker& speaker, OutputStream which, std::string_view line) {
  SpeakerMesh::Fold& into = speaker.mesh->folds[static_cast<size_t>(which)];
  if (into.lines.empty()) {
    into.due_ns = monotonic_ns() + speaker.options.window_ns;
    if (std::find(folding_.begin(), folding_.end(), speaker.mesh) == folding_.end()) folding_.push_back(speaker.mesh);
  }
  speakers_.note_printed(*speaker.mesh);
  into.lines.add(speaker.rank, line);
  if (into.lines.full()) flush_fold(*speaker.mesh, which);
}

void OutputPump::flush_fold(SpeakerMesh& mesh, OutputStream which) {
  for (const LineFolder::Group& group : mesh.folds[static_cast<size_t>(which)].lines.take()) {
    std::string prefix = speakers_.prefix(mesh, group);
    if (group.count > 1) prefix = "[" + std::to_string(group.count) + " similar log lines] " + prefix;
    writer(which).add(prefix, group.text);
  }
}

// Those whose window is over.
void OutputPump::flush_folds(int64_t now_ns) {
  std::erase_if(folding_, [&](const std::shared_ptr<SpeakerMesh>& mesh) {
    bool empty = true;
    for (OutputStream which : {OutputStream::kStdout, OutputStream::kStderr}) {
      const SpeakerMesh::Fold& each = mesh->folds[static_cast<size_t>(which)];
      if (each.due_ns <= now_ns) flush_fold(*mesh, which);
      empty = empty && each.lines.empty();
    }
    return empty;
  });
}

// ---- From lines to the script's streams ----

void OutputPump::flush(OutputStream which) {
  bool& stuck = stuck_[static_cast<size_t>(which)];
  const bool was_stuck = std::exchange(stuck, !writer(which).flush());
  announce_failure(which);
  if (!was_stuck || stuck) return;
  std::erase_if(parked_, [&](SpeakerStream* stream) {
    if (stream->which != which) return false;
    watch(*stream);
    return true;
  });
  for (auto& [node, speaker] : speakers_.all()) announce_dropped(speaker->streams[static_cast<size_t>(which)]);
  stuck = !writer(which).flush();
}

// A closed pipe needs no words: its reader has had enough.
void OutputPump::announce_failure(OutputStream which) {
  const int failure = writer(which).failure();
  if (failure == 0 || failure == EPIPE || failure_announced_ || which == OutputStream::kStderr) return;
  failure_announced_ = true;
  say(std::string("lines of workers are lost, since the script's stdout cannot be written: ") +
      std::strerror(failure));
}

// Our own words, to the script's stderr: as its lines, so that nothing waits for it.
void OutputPump::say(const std::string& what) { writer(OutputStream::kStderr).add("monarch: ", what); }

// Until the script's reader has taken all that was read.
void OutputPump::wait_for_room() {
  for (OutputStream which : {OutputStream::kStdout, OutputStream::kStderr}) {
    for (flush(which); is_stuck(which); flush(which)) wait_for_room_of(writer(which));
  }
}

void OutputPump::watch(SpeakerStream& stream) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = &stream;
  if (epoll_ctl(ready_.get(), EPOLL_CTL_ADD, stream.pipe.get(), &event) == 0) return;
  say("output of a worker is lost: " + std::string(std::strerror(errno)));
}

void OutputPump::park(SpeakerStream& stream) {
  epoll_ctl(ready_.get(), EPOLL_CTL_DEL, stream.pipe.get(), nullptr);
  parked_.push_back(&stream);
}

// ---- Requests ----

void OutputPump::take_requests() {
  for (;;) {
    iovec iov{scratch_.data(), scratch_.size()};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * OutputRequest::kFdsMax)];
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(sockets_[0].get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    std::vector<UniqueFd> fds;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      int numbers[OutputRequest::kFdsMax];
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      std::memcpy(numbers, CMSG_DATA(header), count * sizeof(int));
      for (size_t i = 0; i < count; ++i) fds.emplace_back(numbers[i]);
    }
    auto request = decode_output_request(as_byte_span(scratch_.data(), static_cast<size_t>(got)), fds.size());
    if (!request) {
      say("output of a worker is lost: " + request.error().message);
      continue;
    }
    handle(*request, std::move(fds));
  }
}

void OutputPump::handle(const OutputRequest& request, std::vector<UniqueFd> fds) {
  switch (request.kind) {
    case OutputRequest::kOpen:
      return open(request, std::move(fds));
    case OutputRequest::kOptions:
      set_options(request);
      eventfd_write(fds[0].get(), 1);
      return;
    case OutputRequest::kTail:
      return send_tail(request, fds[0].get());
  }
}

void OutputPump::open(const OutputRequest& request, std::vector<UniqueFd> fds) {
  std::lock_guard lock(mutex_);
  if (speakers_.find(request.nodes.front()) != nullptr) return;
  Speaker& speaker = speakers_.add(request);
  for (size_t i = 0; i < kStreams; ++i) {
    fcntl(fds[i].get(), F_SETFL, O_NONBLOCK);
    speaker.streams[i].pipe = std::move(fds[i]);
    watch(speaker.streams[i]);
  }
  if (!request.name.log_file.empty()) open_log_file(speaker, request.name.log_file);
}

// What was printed before the change is shown as it was to be shown.
void OutputPump::set_options(const OutputRequest& request) {
  turn();
  for (NodeId node : request.nodes) {
    Speaker* speaker = speakers_.find(node);
    if (speaker == nullptr) continue;
    flush_fold(*speaker->mesh, OutputStream::kStdout);
    flush_fold(*speaker->mesh, OutputStream::kStderr);
    speaker->options = request.options;
    std::erase_if(parked_, [&](SpeakerStream* stream) {
      if (stream->speaker != speaker) return false;
      watch(*stream);
      return true;
    });
  }
  flush(OutputStream::kStdout);
  flush(OutputStream::kStderr);
}

void OutputPump::send_tail(const OutputRequest& request, int fd) {
  const NodeId node = request.nodes.front();
  // The process has ended: what it has printed is in its pipe or was read.
  for (bool more = true; more;) {
    Speaker* speaker = speakers_.find(node);
    more = false;
    if (speaker == nullptr) break;
    SpeakerStream& stream = speaker->streams[static_cast<size_t>(request.stream)];
    if (stream.pipe) more = read_stream(stream) == kReadBytes;
  }
  std::string text = speakers_.tail(node, request.stream, request.lines);
  if (text.size() > kTailBytesMax) text.erase(0, text.size() - kTailBytesMax);
  [[maybe_unused]] const ssize_t count = ::write(fd, text.data(), text.size());
}

// ---- Log files ----

void OutputPump::open_log_file(Speaker& speaker, const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/'));
  mkdir(folder.c_str(), 0700);
  struct stat status;
  const bool ours = lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
  if (!ours) errno = EPERM;
  if (ours) speaker.log_file.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600));
  if (std::exchange(log_files_announced_, true)) return;
  if (speaker.log_file) {
    say("what workers print is also written to files in " + folder + "; of the first one: " + path);
  } else {
    say("what workers print cannot be written to " + path + ": " + std::strerror(errno));
  }
}

void OutputPump::write_log_file(Speaker& speaker) {
  if (log_text_.empty()) return;
  [[maybe_unused]] const ssize_t count = ::write(speaker.log_file.get(), log_text_.data(), log_text_.size());
  log_text_.clear();
}

}  // namespace monarch
