// Shows what the workers of a script print: one thread of the script's process reads the pipes that are their stdout and
// stderr, and writes whole lines, each with who said it, to the script's own stdout and stderr.
//
// Order: lines of one stream come as they were printed. Nothing is lost while this process lives: what a worker has
// written lies in its pipe whether it lives or not. While the reader of the script's stdout (or stderr) is slow, pipes
// of that stream are not read, so their writers wait; nothing else waits. The thread belongs to no reactor, takes no
// lock that anybody holds for long, and runs no code of the user's.
#pragma once

#include <pthread.h>
#include <sys/epoll.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/host/output/line_writer.h"
#include "monarch/host/output/output_route.h"
#include "monarch/host/output/speakers.h"

namespace monarch {

class OutputPump {
 public:
  // Where lines go; descriptors that others own and may redirect.
  static Result<std::unique_ptr<OutputPump>> make(Clock& clock, int out_fd = 1, int err_fd = 2);
  ~OutputPump();  // as finish()
  OutputPump(const OutputPump&) = delete;
  OutputPump& operator=(const OutputPump&) = delete;

  // A new descriptor for an OutputRoute; none: there is none to be had (errno).
  UniqueFd route_socket() const;

  // Any thread. Starts the thread, the first time. kUnavailable: there is none to be had.
  Status start();

  // Any thread. Whether something that workers have printed is not out yet. Costs a system call, of 0.2 us.
  bool is_behind();
  // The same for a thread that has waited so long for an answer. Looks always if somebody has printed within the last
  // second, or can have while it waited; else now and then, and says no in between.
  bool is_behind_after(int64_t waited_ns);
  // Any thread but the pump's. Returns when what workers had printed before the call is out; or after a short while, or
  // at once if the reader of the script's output is slow.
  void catch_up();

  // Any thread; a system call. Whether a process that has ended never wrote to that stream. False: it did, or only the
  // pump's thread can tell.
  bool knows_silent(NodeId node, OutputStream which);

  // Any thread. Adds lines about a process that has ended to the log file that has its own, if there is one, behind all
  // that has come from it.
  void note(NodeId node, const std::string& line);

  // Shows all that workers have printed before, however long the reader takes, and ends the thread. Idempotent.
  void finish();

  // Around fork(): the child closes all that is open here, and cannot use it.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  OutputPump(Clock& clock, int out_fd, int err_fd, std::string host_name);

  void run();
  void end();
  void wait_for_work();
  bool turn();
  size_t read_unwatched();
  void choose_pause(size_t most_bytes);
  void publish(uint64_t wanted);

  size_t read_stream(SpeakerStream& stream);
  void finish_line(SpeakerStream& stream);
  void end_stream(SpeakerStream& stream);
  void show(SpeakerStream& stream, std::string_view line);
  void await_state(SpeakerStream& stream);
  void show_states(int64_t now_ns);
  void announce_dropped(SpeakerStream& stream);
  void fold(Speaker& speaker, OutputStream which, std::string_view line);
  void flush_fold(SpeakerMesh& mesh, OutputStream which);
  void flush_folds(int64_t now_ns);
  void flush(OutputStream which);
  void announce_failure(OutputStream which);
  void say(const std::string& what);
  void wait_for_room();
  void watch(SpeakerStream& stream);
  void park(SpeakerStream& stream);

  void take_requests();
  void announce_shortage();
  void handle(const OutputRequest& request, std::vector<UniqueFd> fds);
  void open(const OutputRequest& request, std::vector<UniqueFd> fds);
  void set_options(const OutputRequest& request);
  void send_tail(const OutputRequest& request, int fd);
  void drain(NodeId node, OutputStream which);
  void take_notes();
  void open_log_file(Speaker& speaker, const OutputRequest& request);
  LogFile* log_file_of(const OutputRequest& request);
  void write_log_file(Speaker& speaker);

  LineWriter& writer(OutputStream which) { return writers_[static_cast<size_t>(which)]; }
  bool is_stuck(OutputStream which) const { return stuck_[static_cast<size_t>(which)]; }

  Clock& clock_;
  UniqueFd sockets_[2];  // requests arrive at the first
  UniqueFd wake_;        // eventfd
  UniqueFd ready_;       // epoll of the pipes, but for the parked ones

  // Any thread.
  std::mutex mutex_;  // guards what follows, and the descriptors of speakers_ against fork()
  std::condition_variable caught_up_;
  pthread_t thread_{};
  bool has_thread_ = false;  // and has not joined it
  uint64_t handled_ = 0;  // of wanted_
  bool blocked_ = false;  // a reader is slow
  bool over_ = false;
  std::atomic<bool> has_log_files_{false};
  std::atomic<uint64_t> wanted_{0};  // how often somebody asked to be caught up
  std::atomic<bool> started_{false};
  std::atomic<bool> finishing_{false};
  std::atomic<bool> recent_{false};
  std::atomic<bool> busy_{false};  // what it has read is not out, or not noted, yet

  std::mutex notes_mutex_;  // a leaf, and not mutex_: the reactor notes, and that is held while files are opened
  std::vector<std::pair<NodeId, std::string>> notes_;

  // The pump's thread.
  std::unordered_map<std::string, LogFile> log_files_;  // by their paths, until the end: others of that host may come
  Speakers speakers_;
  LineWriter writers_[kStreams];
  bool stuck_[kStreams] = {};            // the writer waits for room
  std::vector<SpeakerStream*> parked_;   // not looked at until their writer has room
  std::vector<SpeakerStream*> unwatched_;  // the kernel watches no more now: looked at each time
  std::vector<SpeakerStream*> rewritten_;  // a line that is being rewritten has a state to show
  std::vector<std::shared_ptr<SpeakerMesh>> folding_;  // some of their lines wait for the end of their window
  std::vector<char> scratch_;
  std::vector<epoll_event> events_;
  const std::string log_end_;  // of the paths of log files: which script they are of
  std::string log_text_;  // of the stream that is being read
  std::string log_time_;  // at which it was read
  int64_t pause_ns_ = 0;  // how long pipes that are being filled are left alone
  int busy_turns_ = 0;    // in a row
  uint64_t published_ = 0;
  bool published_blocked_ = false;
  std::unordered_set<std::string> no_log_files_;  // those that could not be opened, and this was said
  bool failure_announced_ = false;
  bool short_ = false;  // there was no descriptor for the next request: it waits
  bool shortage_announced_ = false;
};

}  // namespace monarch
