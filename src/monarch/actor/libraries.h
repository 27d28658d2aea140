// Shared libraries of C++ actors, known by what is in them. Whoever loads one can give it to other processes of its job:
// one that is to run an actor of it takes the file at the same path, if that has the same content, and else is sent it.
// What was sent lies in memory: no file is made of it, and nothing is left.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "monarch/actor/cell.h"
#include "monarch/base/ids.h"
#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"
#include "monarch/base/well_known.h"

namespace monarch {

class Node;
namespace internal {
class Turn;
}

// What a spawn says of the library that its class comes from.
struct LibraryRef {
  std::string path;   // where it was loaded
  std::string hash{};  // SHA-256 of the content, 32 bytes; empty: whatever lies at the path
  NodeId source = 0;  // who has loaded it, and can send it
};

class Libraries {
 public:
  // The one of this process, as ActorRegistry's: a library is loaded for all of it.
  static Libraries& instance();

  struct Loaded {
    std::vector<std::string> classes;  // that are new
    std::string hash;
  };
  // Any thread. Loads the library, which can be sent from now on, also when the file is gone. kUnsupported.
  Result<Loaded> load(const std::string& path);

  // In the turn of an actor that is to be made, of which it is told when the process ends: loads what `ref` says, and
  // waits for it to come if need be. An error says why it is not here.
  Status find(Node& node, internal::Turn& turn, const LibraryRef& ref);

  // Any thread. Why an actor of that class, which this process knows, must not be taken for one that `ref` means: it comes
  // from a library with another content. Empty: nothing speaks against it.
  std::string why_another(const std::string& class_name, const LibraryRef& ref) const;

  // The content, as it was when it was loaded, or an error.
  Result<std::vector<std::byte>> content(const std::string& hash) const;

 private:
  Libraries() = default;
  Status take(const LibraryRef& ref, ByteSpan content);
  Result<std::vector<std::string>> load_as(const std::string& path, const std::string& hash);

  mutable std::mutex mutex_;  // a leaf
  std::map<std::string, std::string> origins_;  // of classes: the hash of the library that they came with
  std::map<std::string, std::pair<std::string, UniqueFd>> files_;  // that can be sent, by hash: path, and open
  std::mutex finding_;  // one actor looks for a library at a time. What is waited for meanwhile comes without it
  std::map<std::string, UniqueFd> sent_;  // with finding_: that were sent to this process, by hash
};

// Gives to those who ask what this process has loaded. An actor of every process (WellKnown::kLibraries); any thread.
class LibraryCell final : public Cell {
 public:
  explicit LibraryCell(Node& node) : node_(node) {}
  static ActorId id_of(NodeId node) { return well_known(node, WellKnown::kLibraries); }
  void deliver(MessagePtr message) override;

 private:
  Node& node_;
};

}  // namespace monarch
