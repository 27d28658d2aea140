#include "monarch/actor/libraries.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "monarch/actor/calls.h"
#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/registry.h"
#include "monarch/actor/turn.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

constexpr size_t kHashBytes = 32;
constexpr size_t kPieceBytes = 1 << 20;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    MONARCH_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(ByteSpan bytes) { MONARCH_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1); }
  std::string end() {
    unsigned char hash[kHashBytes];
    MONARCH_CHECK(EVP_DigestFinal_ex(context_.get(), hash, nullptr) == 1);
    return {reinterpret_cast<const char*>(hash), sizeof hash};
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// Empty: it cannot be read, and errno says why.
std::string hash_of(int fd) {
  Sha256 hash;
  std::vector<std::byte> piece(kPieceBytes);
  for (off_t at = 0;;) {
    const ssize_t count = pread(fd, piece.data(), piece.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return "";
    if (count == 0) return hash.end();
    hash.add(ByteSpan(piece).first(static_cast<size_t>(count)));
    at += count;
  }
}

// Whether it was read whole.
bool read_all(int fd, std::vector<std::byte>& into) {
  struct stat info;
  if (fstat(fd, &info) != 0) return false;
  into.resize(static_cast<size_t>(info.st_size));
  for (size_t at = 0; at < into.size();) {
    const ssize_t count = pread(fd, into.data() + at, into.size() - at, static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += static_cast<size_t>(count);
  }
  return true;
}

bool write_all(int fd, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

// What its source answers; null: this process ends.
std::shared_ptr<PendingCall> ask(Node& node, internal::Turn& turn, const LibraryRef& ref) {
  auto members = std::make_shared<Members>();
  members->ids = {LibraryCell::id_of(ref.source)};
  auto call = std::make_shared<PendingCall>(members);
  call->set_label(std::make_shared<const std::string>("the library " + ref.path));
  Outgoing request{FrameHeader{}, as_byte_span(ref.hash.data(), ref.hash.size()), {}};
  request.header.kind = FrameKind::kRequest;
  node.cast(*members, request, call);
  struct Wait {
    const PendingCall& call;
    const internal::Turn& turn;
    static bool over(const void* self) {
      const Wait& wait = *static_cast<const Wait*>(self);
      return wait.call.complete() || wait.turn.stopping();
    }
  } wait{*call, turn};
  Waiter& waiter = turn.begin_blocking();
  call->add_waiter(waiter, call->size());
  while (node.driver().wait(waiter, &Wait::over, &wait, kNoDeadline) == WaitResult::kInterrupted) {
  }
  call->remove_waiter(waiter);
  turn.end_blocking();
  return call->complete() ? call : nullptr;
}

}  // namespace

Libraries& Libraries::instance() {
  static Libraries& libraries = *new Libraries;  // never destroyed, as the registry
  return libraries;
}

Result<Libraries::Loaded> Libraries::load(const std::string& path) {
  UniqueFd file = sys::open_file(path.c_str(), O_RDONLY);
  std::string hash = file ? hash_of(file.get()) : "";
  auto classes = load_as(path, hash);  // it has the better words for what is wrong
  if (!classes) return classes.error();
  if (hash.empty()) return Error{ErrorCode::kUnsupported, "cannot read the library " + path + ": " + std::strerror(errno)};
  std::lock_guard lock(mutex_);
  files_.try_emplace(hash, path, std::move(file));
  return Loaded{std::move(*classes), std::move(hash)};
}

// Its classes that are new, which are known by that hash from now on; empty: it could not be had.
Result<std::vector<std::string>> Libraries::load_as(const std::string& path, const std::string& hash) {
  auto classes = ActorRegistry::instance().load_library(path);
  if (!classes || hash.empty()) return classes;
  std::lock_guard lock(mutex_);
  for (const std::string& name : *classes) origins_.try_emplace(name, hash);
  return classes;
}

std::string Libraries::why_another(const std::string& class_name, const LibraryRef& ref) const {
  if (ref.hash.empty()) return "";
  std::lock_guard lock(mutex_);
  const auto origin = origins_.find(class_name);
  if (origin == origins_.end() || origin->second == ref.hash) return "";
  return "this process runs another build of the C++ actor class '" + class_name + "' than " + ref.path +
         " had when it was loaded; a process keeps the build that it has loaded first: start new ones";
}

Result<std::vector<std::byte>> Libraries::content(const std::string& hash) const {
  std::lock_guard lock(mutex_);
  const auto found = files_.find(hash);
  if (found == files_.end()) return Error{ErrorCode::kUnsupported, "it has not loaded it"};
  std::vector<std::byte> content;
  if (!read_all(found->second.second.get(), content)) {
    return Error{ErrorCode::kUnsupported, "it cannot read " + found->second.first + " any more"};
  }
  return content;
}

Status Libraries::find(Node& node, internal::Turn& turn, const LibraryRef& ref) {
  const auto load_file = [&] {
    auto loaded = load_as(ref.path, ref.hash);
    return loaded ? Status(Ok{}) : Status(loaded.error());
  };
  if (ref.hash.empty()) return load_file();
  std::lock_guard lock(finding_);
  if (turn.stopping()) return Error{ErrorCode::kClosed, "this process is ending"};
  if (sent_.contains(ref.hash)) return Ok{};
  if (const UniqueFd file = sys::open_file(ref.path.c_str(), O_RDONLY); file && hash_of(file.get()) == ref.hash) {
    return load_file();
  }
  const auto call = ask(node, turn, ref);
  if (!call) return Error{ErrorCode::kClosed, "this process is ending"};
  const Message& answer = *call->reply(0);
  if (answer.header.kind != FrameKind::kReply || answer.parts.size() != 1) {
    const bool failed = answer.header.kind == FrameKind::kReplyFailed;
    const std::string why = failed ? failure_of(answer).text() : "it sent no library";
    return Error{ErrorCode::kUnsupported, "the library " + ref.path +
                                              " is not on this host with the content that is wanted, and cannot be had "
                                              "from the process that has loaded it: " + why};
  }
  return take(ref, ByteSpan(answer.parts[0].data, answer.parts[0].size));
}

Status Libraries::take(const LibraryRef& ref, ByteSpan content) {
  Sha256 hash;
  hash.add(content);
  if (hash.end() != ref.hash) {
    return Error{ErrorCode::kUnsupported, "the library " + ref.path +
                                              " has changed since it was loaded: put a new one in the place of the old, "
                                              "and do not write into that"};
  }
  const std::string name = ref.path.substr(ref.path.rfind('/') + 1);
  UniqueFd memory = sys::make_memfd(name.substr(0, 200).c_str(), MFD_CLOEXEC);
  if (!memory || !write_all(memory.get(), content)) return sys::shortage_error("keep a library that was sent");
  // It stays open: the name is what the loader knows the library by, and must not come to mean another one.
  const int fd = memory.get();
  auto loaded = load_as("/proc/self/fd/" + std::to_string(fd), ref.hash);
  if (!loaded) {
    return Error{loaded.error().code, "the library " + ref.path + ", as it was sent: " + loaded.error().message};
  }
  sent_.emplace(ref.hash, std::move(memory));
  return Ok{};
}

void LibraryCell::deliver(MessagePtr message) {
  if (message->header.kind != FrameKind::kRequest || message->body.size() != kHashBytes) {
    return node_.refuse(*message, "this takes requests for libraries");
  }
  const std::string hash(message->text());
  auto content = Libraries::instance().content(hash);
  if (!content) return node_.refuse(*message, content.error().message);
  const ByteSpan part(*content);
  Outgoing answer{FrameHeader{}, {}, {&part, 1}};
  node_.reply(message->header, message->from, FrameKind::kReply, answer);
}

}  // namespace monarch
