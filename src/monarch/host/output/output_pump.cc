#include "monarch/host/output/output_pump.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <sstream>

#include "monarch/base/bytes.h"
#include "monarch/base/check.h"
#include "monarch/base/host_name.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

constexpr size_t kReadBytes = 64 << 10;         // what a pipe holds
static_assert(kReadBytes >= OutputRequest::kBytesMax);
constexpr size_t kWaitingBytesMax = 256 << 10;  // of lines: then they are written before more is read
constexpr int64_t kRecentNs = 1'000'000'000;
constexpr int64_t kStateNs = 1'000'000'000;     // how often the state of a line that is being rewritten is shown
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
constexpr uint64_t kLookUs = 20;
constexpr size_t kTailBytesMax = 60 << 10;  // fits into the pipe that it is answered on

constexpr int64_t kShortageRetryNs = 20'000'000;

timespec to_timespec(int64_t ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }

// "_20260131-120000-4711.log": when this script began, and its process.
std::string end_of_paths(int64_t wall_ns) {
  std::string time = utc_text(wall_ns).substr(0, std::string_view("2026-01-31T12:00:00").size());
  std::erase_if(time, [](char c) { return c == '-' || c == ':'; });
  std::replace(time.begin(), time.end(), 'T', '-');
  return "_" + time + "-" + std::to_string(getpid()) + ".log";
}

void wait_for_room_of(const LineWriter& writer) {
  pollfd room{writer.fd(), POLLOUT, 0};
  const timespec limit = to_timespec(kRoomLookNs);
  ppoll(&room, 1, &limit, nullptr);
}

}  // namespace

OutputPump::OutputPump(Clock& clock, int out_fd, int err_fd, std::string host_name)
    : clock_(clock),
      wake_(sys::make_eventfd()),
      ready_(sys::make_epoll()),
      speakers_(std::move(host_name)),
      writers_{LineWriter(out_fd), LineWriter(err_fd)},
      scratch_(kReadBytes),
      log_end_(end_of_paths(clock.wall_ns())) {}

Result<std::unique_ptr<OutputPump>> OutputPump::make(Clock& clock, int out_fd, int err_fd) {
  std::unique_ptr<OutputPump> pump(new OutputPump(clock, out_fd, err_fd, host_name()));
  if (!pump->wake_ || !pump->ready_ ||
      !sys::make_socket_pair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, pump->sockets_)) {
    return sys::shortage_error("show what workers print");
  }
  // Among the pipes, so that who looks whether the pump is behind sees pipes that it does not know yet.
  epoll_event event{};
  event.events = EPOLLIN;
  if (sys::epoll_add(pump->ready_.get(), pump->sockets_[0].get(), &event) != 0) {
    return sys::shortage_error("show what workers print");
  }
  return pump;
}

OutputPump::~OutputPump() { finish(); }

UniqueFd OutputPump::route_socket() const { return sys::duplicate(sockets_[1].get()); }

Status OutputPump::start() {
  if (started_.load()) return Ok{};
  std::lock_guard lock(mutex_);
  if (over_ || started_) return Ok{};
  const auto run = [](void* self) -> void* {
    static_cast<OutputPump*>(self)->run();
    return nullptr;
  };
  // Signals stay with the main thread; a reader that goes away is EPIPE.
  if (!sys::start_thread(&thread_, run, this)) return sys::shortage_error("start a thread that shows what workers print");
  has_thread_ = true;
  started_ = true;
  return Ok{};
}

void OutputPump::note(NodeId node, const std::string& line) {
  if (!has_log_files_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(notes_mutex_);
  notes_.emplace_back(node, line);
  eventfd_write(wake_.get(), 1);
}

void OutputPump::finish() {
  {
    std::lock_guard lock(mutex_);
    if (!started_) over_ = true;
    if (!std::exchange(has_thread_, false)) return;
  }
  finishing_ = true;
  eventfd_write(wake_.get(), 1);
  pthread_join(thread_, nullptr);
}

void OutputPump::after_fork_in_child() {
  for (auto& [node, speaker] : speakers_.all()) {
    for (SpeakerStream& stream : speaker->streams) stream.pipe.reset();
  }
  for (auto& [path, file] : log_files_) file.close();
  for (UniqueFd* fd : {&sockets_[0], &sockets_[1], &wake_, &ready_}) fd->reset();
  started_ = false;
  has_thread_ = false;
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
  thread_local NowAndThen look(kLookUs);
  if (waited_ns < kPrintingCallNs && !recent_.load(std::memory_order_relaxed) && !look.due()) return false;
  return is_behind();
}

bool OutputPump::knows_silent(NodeId node, OutputStream which) {
  std::lock_guard lock(mutex_);
  const Speaker* speaker = speakers_.find(node);
  if (speaker == nullptr) return false;
  const SpeakerStream& stream = speaker->streams[static_cast<size_t>(which)];
  int left = 0;
  if (!stream.pipe || ioctl(stream.pipe.get(), FIONREAD, &left) != 0 || left != 0) return false;
  // As in is_behind(): what is in no pipe any more has been read, and the pump is busy until that is noted.
  return !busy_.load(std::memory_order_seq_cst) && !stream.has_said.load(std::memory_order_seq_cst);
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
    take_notes();
    flush_folds(clock_.now_ns());
    show_states(clock_.now_ns());
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
  take_notes();
  for (auto& [node, speaker] : speakers_.all()) {
    for (SpeakerStream& stream : speaker->streams) finish_line(stream);
  }
  flush_folds(INT64_MAX);
  wait_for_room();
}

void OutputPump::wait_for_work() {
  int64_t limit_ns = recent_.load(std::memory_order_relaxed) ? kRecentNs : INT64_MAX;
  pollfd fds[] = {{wake_.get(), POLLIN, 0},
                  {short_ ? -1 : sockets_[0].get(), POLLIN, 0},
                  {pause_ns_ == 0 && !short_ ? ready_.get() : -1, POLLIN, 0},
                  {-1, POLLOUT, 0},
                  {-1, POLLOUT, 0}};
  if (pause_ns_ != 0) limit_ns = std::min(limit_ns, pause_ns_);
  if (short_ || !unwatched_.empty()) limit_ns = std::min(limit_ns, kShortageRetryNs);
  for (int i = 0; i < kStreams; ++i) {
    if (!stuck_[i]) continue;
    fds[3 + i].fd = writers_[i].fd();
    limit_ns = std::min(limit_ns, kRoomLookNs);
  }
  for (const auto& mesh : folding_) {
    for (const SpeakerMesh::Fold& each : mesh->folds) {
      if (!each.lines.empty()) limit_ns = std::min(limit_ns, std::max<int64_t>(each.due_ns - clock_.now_ns(), 0));
    }
  }
  if (!rewritten_.empty()) {  // who has waited longest comes first
    limit_ns = std::min(limit_ns, std::max<int64_t>(rewritten_.front()->state_due_ns - clock_.now_ns(), 0));
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
  size_t most = read_unwatched();
  bool any = most != 0;
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

// -> the most that was read from one. They are tried again: what watches them next finds the rest.
size_t OutputPump::read_unwatched() {
  size_t most = 0;
  for (SpeakerStream* stream : std::exchange(unwatched_, {})) {
    watch(*stream);
    if (!unwatched_.empty() && unwatched_.back() == stream && !is_stuck(stream->which)) {
      most = std::max(most, read_stream(*stream));
    }
  }
  return most;
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
  stream.has_said.store(true, std::memory_order_seq_cst);
  stream.tail.add(bytes);
  stream.splitter.feed(bytes, [&](std::string_view line) { show(stream, line); });
  write_log_file(*stream.speaker);
  await_state(stream);
  return bytes.size();
}

// What a progress bar says is shown when it ends, and until then now and then.
void OutputPump::await_state(SpeakerStream& stream) {
  if (stream.state_due_ns != 0 || !stream.splitter.has_state()) return;
  stream.state_due_ns = clock_.now_ns() + kStateNs;
  rewritten_.push_back(&stream);
}

// Those that are due.
void OutputPump::show_states(int64_t now_ns) {
  std::erase_if(rewritten_, [&](SpeakerStream* stream) {
    if (stream->state_due_ns > now_ns) return false;
    stream->state_due_ns = 0;
    stream->splitter.show_state([&](std::string_view line) { show(*stream, line); });
    write_log_file(*stream->speaker);
    return true;
  });
}

// Its writer has ended, or nothing more is read: what has no newline is a line.
void OutputPump::finish_line(SpeakerStream& stream) {
  stream.splitter.finish([&](std::string_view line) { show(stream, line); });
  announce_dropped(stream);
  write_log_file(*stream.speaker);
}

void OutputPump::end_stream(SpeakerStream& stream) {
  Speaker& speaker = *stream.speaker;
  finish_line(stream);
  std::erase(parked_, &stream);
  std::erase(unwatched_, &stream);
  std::erase(rewritten_, &stream);
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
  if (speaker.log_file != nullptr) {
    if (log_text_.empty()) log_time_ = utc_text(clock_.wall_ns());
    LogFile::format(log_text_, log_time_, *speaker.voice, line);
  }
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
    into.due_ns = clock_.now_ns() + speaker.options.window_ns;
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
  if (sys::epoll_add(ready_.get(), stream.pipe.get(), &event) == 0) return;
  announce_shortage();
  unwatched_.push_back(&stream);
}

void OutputPump::park(SpeakerStream& stream) {
  epoll_ctl(ready_.get(), EPOLL_CTL_DEL, stream.pipe.get(), nullptr);
  parked_.push_back(&stream);
}

// ---- Requests ----

// Each is looked at before it is taken: one whose descriptors find no room here stays where it is, so that who prints waits
// and loses nothing.
void OutputPump::take_requests() {
  busy_.store(true, std::memory_order_seq_cst);  // what comes by a pipe that is taken and not watched yet is behind, too
  for (;;) {
    auto got = sys::receive_message(sockets_[0].get(), std::as_writable_bytes(std::span(scratch_)),
                                    MSG_PEEK | MSG_DONTWAIT);
    short_ = got.size > 0 && got.lost;
    if (got.size <= 0) return;
    if (short_) {
      errno = EMFILE;
      return announce_shortage();
    }
    recv(sockets_[0].get(), nullptr, 0, MSG_DONTWAIT);
    auto request = decode_output_request(as_byte_span(scratch_.data(), static_cast<size_t>(got.size)), got.fds.size());
    if (!request) {
      say("output of a worker is lost: " + request.error().message);
      continue;
    }
    handle(*request, std::move(got.fds));
  }
}

// By errno.
void OutputPump::announce_shortage() {
  if (std::exchange(shortage_announced_, true)) return;
  say(sys::shortage_error("show yet what some workers print").message);
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
  if (!request.name.log_file.empty()) open_log_file(speaker, request);
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
  drain(node, request.stream);
  std::string text = speakers_.tail(node, request.stream, request.lines);
  if (text.size() > kTailBytesMax) text.erase(0, text.size() - kTailBytesMax);
  [[maybe_unused]] const ssize_t count = ::write(fd, text.data(), text.size());
}

// Of a process that has ended: what it has printed is in its pipe or was read. What it has started may go on printing.
void OutputPump::drain(NodeId node, OutputStream which) {
  const Speaker* speaker = speakers_.find(node);
  if (speaker == nullptr) return;
  int left = 0;
  const UniqueFd& pipe = speaker->streams[static_cast<size_t>(which)].pipe;
  if (!pipe || ioctl(pipe.get(), FIONREAD, &left) != 0) return;
  while (left > 0) {
    Speaker* still = speakers_.find(node);
    if (still == nullptr || !still->streams[static_cast<size_t>(which)].pipe) return;
    const size_t count = read_stream(still->streams[static_cast<size_t>(which)]);
    if (count == 0) return;
    left -= static_cast<int>(count);
  }
}

// ---- Log files ----

void OutputPump::take_notes() {
  std::vector<std::pair<NodeId, std::string>> notes;
  {
    std::lock_guard lock(notes_mutex_);
    notes.swap(notes_);
  }
  for (const auto& [node, line] : notes) {
    drain(node, OutputStream::kStdout);
    drain(node, OutputStream::kStderr);
    if (Speaker* speaker = speakers_.find(node); speaker != nullptr && speaker->log_file != nullptr) {
      for (SpeakerStream& stream : speaker->streams) finish_line(stream);
    }
    const auto [file, who] = speakers_.place_in_files(node);
    if (file == nullptr) continue;
    LogFile::Voice& voice = file->add(who);
    const std::string time = utc_text(clock_.wall_ns());
    std::string text;
    std::istringstream lines(line);
    for (std::string each; std::getline(lines, each);) LogFile::format(text, time, voice, each);
    file->write(voice, text);
    file->end(voice);
  }
}

void OutputPump::open_log_file(Speaker& speaker, const OutputRequest& request) {
  speaker.log_file = log_file_of(request);
  if (speaker.log_file != nullptr) speaker.voice = &speaker.log_file->add(speaker.who_in_files);
}

// None: it cannot be opened.
LogFile* OutputPump::log_file_of(const OutputRequest& request) {
  std::string path = request.name.log_file + log_end_;
  if (path.front() == '+') {
    path.erase(0, 1);
    const Speaker* parent = speakers_.find(request.parent);
    if (parent != nullptr && parent->log_file != nullptr) return parent->log_file;
  }
  if (auto known = log_files_.find(path); known != log_files_.end()) return &known->second;
  auto file = LogFile::make(path);
  const bool is_first = !has_log_files_.exchange(true);
  if (!file) {
    if (no_log_files_.insert(path).second) {
      say("what workers print cannot be written to " + path + ": " + file.error().message);
    }
    return nullptr;
  }
  if (is_first) {
    const std::string folder = path.substr(0, path.rfind('/'));
    say("what workers print is also written to files in " + folder + ", one for each host; the first one: " + path);
  }
  return &log_files_.emplace(std::move(path), std::move(*file)).first->second;
}

void OutputPump::write_log_file(Speaker& speaker) {
  if (log_text_.empty()) return;
  speaker.log_file->write(*speaker.voice, log_text_);
  if (const std::string why = speaker.log_file->take_trouble(); !why.empty()) {
    say("what workers print cannot be written to " + speaker.log_file->path() + ", where lines are missing: " + why);
  }
  log_text_.clear();
}

}  // namespace monarch
