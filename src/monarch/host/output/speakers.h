// The processes that may print, and how each of their lines is introduced: "[3] " in the mesh that prints first,
// "[trainer 3] " in the others.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "monarch/base/unique_fd.h"
#include "monarch/host/output/log_file.h"
#include "monarch/host/output/line_folder.h"
#include "monarch/host/output/line_splitter.h"
#include "monarch/host/output/line_tail.h"
#include "monarch/host/output/output_route.h"

namespace monarch {

inline constexpr int kStreams = 2;  // stdout and stderr

// The processes of one spawn.
struct SpeakerMesh {
  std::string name;          // "trainer"; "trainer#2" for the second of that name
  std::string parent;        // who has started it: "", or "0/"
  std::string parent_named;  // the same: "", or "generator 0/"
  std::string parent_in_files;  // the same
  bool has_printed = false;
  bool named = false;  // its prefixes say its name: another mesh had printed before it did
  struct Fold {
    LineFolder lines;
    int64_t due_ns = 0;  // when they are shown, unless there are none
  };
  Fold folds[kStreams];
};

struct Speaker;

// One pipe.
struct SpeakerStream {
  Speaker* speaker = nullptr;
  OutputStream which = OutputStream::kStdout;
  UniqueFd pipe;  // none: its end was seen
  LineSplitter splitter;
  LineTail tail;
  std::atomic<bool> has_said{false};  // anything
  uint64_t dropped = 0;  // lines, not announced yet
  int64_t state_due_ns = 0;  // when the state of a line that is being rewritten is shown; 0: there is none to show
};

struct Speaker {
  NodeId node = 0;
  int64_t rank = -1;
  std::shared_ptr<SpeakerMesh> mesh;  // shared by the mesh's processes, and by who folds their lines
  OutputOptions options;
  std::string who;        // "3", "3/0", "procs"
  std::string who_named;  // "trainer 3", "trainer 3/helper 0", "procs"
  std::string plain, named, full;  // prefixes: of who, of who_named, the long one
  std::string who_in_files;  // "trainer 3", "trainer 3/helper 0", "procs 0"
  LogFile* log_file = nullptr;  // the pump's; none: its lines go into none
  LogFile::Voice* voice = nullptr;  // there
  SpeakerStream streams[kStreams];
};

// Belongs to one thread.
class Speakers {
 public:
  explicit Speakers(std::string host_name) : host_name_(std::move(host_name)) {}

  // A process that is about to start, of a node that is not known yet.
  Speaker& add(const OutputRequest& request);
  Speaker* find(NodeId node);
  // Both its pipes have ended: its tails are kept, of the last processes that ended.
  void remove(Speaker& speaker);
  // The last lines of a process, ended or not; empty if it is not known.
  std::string tail(NodeId node, OutputStream stream, uint32_t lines);

  // The log file of a process, ended or not, and how it is called there; none: it has none, or is not known any more.
  std::pair<LogFile*, std::string> place_in_files(NodeId node);

  // Its first line decides how all of its lines are introduced.
  void note_printed(SpeakerMesh& mesh);
  // What stands before a line of `speaker`, which is about to be shown: "[3] ", or nothing.
  const std::string& prefix(Speaker& speaker);
  // What stands before a folded line of `group`: "[ranks 0-31] ".
  std::string prefix(const SpeakerMesh& mesh, const LineFolder::Group& group) const;

  auto& all() { return speakers_; }

 private:
  struct Ended {
    NodeId node;
    LineTail tails[kStreams];
  };
  std::string unique_name(const std::string& parent, const std::string& name);

  struct EndedInFiles {
    NodeId node;
    LogFile* file;
    std::string who;
  };

  static constexpr size_t kEndedMax = 64;
  static constexpr size_t kEndedInFilesMax = 1024;

  const std::string host_name_;
  std::unordered_map<NodeId, std::unique_ptr<Speaker>> speakers_;
  std::unordered_map<uint64_t, std::weak_ptr<SpeakerMesh>> meshes_;
  std::unordered_map<std::string, int> names_;  // how many meshes of one parent have had this name
  std::deque<Ended> ended_;
  std::deque<EndedInFiles> ended_in_files_;
  bool any_has_printed_ = false;
};

}  // namespace monarch
