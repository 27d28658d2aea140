// Another process of this machine, whose memory this one reads without asking it: by the kernel (kernel_copy.h), or where
// it lies in memory that can be mapped, there.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "monarch/base/clock.h"
#include "monarch/base/unique_fd.h"
#include "monarch/bulk/cuda.h"
#include "monarch/bulk/kernel_copy.h"
#include "monarch/bulk/memory.h"
#include "monarch/bulk/buffers.h"
#include "monarch/wire/value_codec.h"

namespace monarch {

// What a process says of itself, to be found by others of its machine.
struct Contact {
  std::string machine;         // this boot of it
  uint64_t pid_namespace = 0;  // in which its pid is what it says
  int64_t pid = 0;
  // Sixteen random bytes of it, and where they are: whoever reads others there has met another process.
  uint64_t proof_address = 0;
  std::array<uint64_t, 2> proof{};
  int64_t table_fd = -1;  // of its Buffers; -1: it has none
  uint64_t table_inode = 0;
  // What it says of itself could not be looked up, or be had, when it was asked: in a shortage, for one.
  bool is_short() const { return machine.empty() || pid_namespace == 0; }
  // Of this process; from now on the kernel lets other processes of this user copy from it, where Yama is all that forbids
  // that. Any thread.
  static Contact of_here(const Buffers* buffers);
  // Looks up what of this it has in common with children of fork(), who then need not: 0.2 ms.
  static void prepare_for_children();
};

// A number of this machine, until it boots again; 0: it has none.
uint64_t machine_number();

template <>
struct ValueCodec<Contact> {
  static auto fields(auto& c) {
    return std::tie(c.machine, c.pid_namespace, c.pid, c.proof_address, c.proof[0], c.proof[1], c.table_fd, c.table_inode);
  }
  static void encode(ValueWriter& writer, const Contact& contact) { monarch::encode(writer, fields(contact)); }
  static bool decode(ValueReader& reader, Contact& contact) { return decode_into(reader, fields(contact)); }
};

// How its memory is reached.
enum class Path : uint8_t {
  kLocal,  // it is this process
  kShm,    // its memory is mapped here
  kCma,    // the kernel copies
  kLink,   // its process is asked, over the link that messages go by
  kStream,  // the same over a connection of its own, between hosts; what is small goes by the link
  kUcx,     // the same, and the bytes by UCX
  kCudaIpc,  // its memory of a device is opened here
};

// Which ways are tried: all, but where somebody says otherwise (MONARCH_RDMA_PATHS).
struct Paths {
  bool shm = true, cma = true, cuda_ipc = true;
};

// Any thread.
class Neighbour {
 public:
  // What can be found out about a process by its contact.
  static std::shared_ptr<Neighbour> meet(const Contact& contact, Paths paths);

  // Empty: the kernel copies from and to it. Else why not.
  const std::string& why_no_kernel() const { return why_no_kernel_; }
  // The same for its table, without which nothing is read from it.
  const std::string& why_no_table() const { return why_no_table_; }
  // Whether the owner is to be asked for a CudaExport of this before it is read; what it has said goes to note_export().
  bool wants_export(const BufferHandle& handle) const;
  void note_export(const BufferHandle& handle, Result<CudaExport> said);
  // By which of kShm, kCma, kCudaIpc and kLink this is read, if its handle is any good. `why_not`: of those that are not
  // taken, for people.
  Path path_of(const BufferHandle& handle, std::string* why_not = nullptr);

  enum class Outcome : uint8_t {
    kDone,
    kRefused,  // with the reason
    kFault,    // the memory is not there any more
    kGone,     // the process is not, or is not to be reached so (any more): it has to be asked
    kDeadline,
  };
  // Reads all of the handle's bytes into `into`, from its byte `at` on. After anything but kDone what is there is
  // undefined.
  Outcome read(const BufferHandle& handle, const Memory& into, uint64_t at, Clock& clock, int64_t deadline_ns,
               Refusal* why);
  // Reads all of `there`, its memory: for an owner of buffers that a neighbour writes to.
  Outcome pull(const Memory& there, const Memory& into, uint64_t at, Clock& clock, int64_t deadline_ns);

  // Writes all of `from` to the first bytes of the handle's, if the buffer is open and that process has admitted this one
  // (note_admitted()). kRefused, kGone: it has to be asked. `own`: of this process.
  Outcome write(const BufferHandle& handle, const Memory& from, Buffers& own, Clock& clock, int64_t deadline_ns);
  bool is_open_here(const BufferHandle& handle) const;
  // Whether that may come to something, as far as this process knows.
  bool may_be_written() const;
  enum class Admitted : uint8_t { kUnknown, kAsked, kYes, kNo };
  bool begin_asking();  // for it: once, until something else is noted
  void note_admitted(Admitted what) { admitted_.store(what, std::memory_order_release); }
  // Of a process that this one has admitted: whether some thread of it may be writing to what has that claim.
  bool may_write_to(uint64_t claim) const;

  // What was found out is not for long: something was short.
  bool is_for_now() const { return for_now_; }
  // Whether that is its contact.
  bool is(const Contact& contact) const { return contact.pid == contact_.pid && contact.proof == contact_.proof; }
  // Whether it lives, as far as can be told.
  bool lives() const;
  // Whether it is known that all its threads are gone: no system call of theirs is under way any more.
  bool has_ended() const;
  // Of its process and its table, and of no other.
  using Key = std::array<uint64_t, 3>;
  Key key() const { return {contact_.proof[0], contact_.proof[1], contact_.table_inode}; }
  // Gives back what is mapped or opened of its memory and has not been read since this was called last. Whether some is
  // left. For gigabytes it takes its time.
  bool forget_idle_maps();

 private:
  // Memory of it that is mapped here. shared: with reads that are under way.
  class Map {
   public:
    explicit Map(Mapping mapping) : mapping_(std::move(mapping)) {}
    std::byte* data() const { return static_cast<std::byte*>(mapping_.get()); }
    bool has(uint64_t from, uint64_t size) const { return from <= mapping_.size() && size <= mapping_.size() - from; }
    // Before much of it is read: enters pages that have not been read before.
    void warm(uint64_t from, uint64_t size);
    uint64_t used = 0, looked_at = 0;  // with the neighbour's lock

   private:
    const Mapping mapping_;
    std::mutex mutex_;  // a leaf
    uint64_t warm_from_ = 0, warm_to_ = 0;
  };
  // What the table says of it, at one moment.
  struct Seen {
    uint64_t address = 0, size = 0, file_offset = 0, inode = 0;
    int64_t file = -1;
    bool is_on_device = false;
  };
  // What its owner has said of a buffer on a device.
  struct Export {
    uint64_t generation = 0;
    CudaExport memory;
    std::string why_not;
  };
  struct Allocation {
    std::shared_ptr<Cuda::Opened> opened;  // shared: with reads that are under way
    uint64_t used = 0, looked_at = 0;
  };

  Neighbour(const Contact& contact, Paths paths) : contact_(contact), paths_(paths) {}
  Status prove() const;
  Status open_table();
  const BufferEntry& entry(uint32_t index) const { return static_cast<const BufferEntry*>(table_.get())[index]; }
  Refusal look(const BufferHandle& handle, Seen* seen) const;
  bool is_still(const BufferHandle& handle) const;
  const char* why_not_written() const;
  Outcome push(const Memory& from, const Memory& there, Clock& clock, int64_t deadline_ns);
  std::shared_ptr<Map> map_of(const Seen& seen, std::string* why_not = nullptr);
  Memory opened_memory(const BufferHandle& handle, const Seen& seen, std::shared_ptr<Cuda::Opened>* keeper,
                       std::string* why_not = nullptr);
  void note_failure(const BufferHandle& handle, const std::string& why);
  Outcome read_opened(const BufferHandle& handle, const Seen& seen, const Memory& into, uint64_t at, Clock& clock,
                      int64_t deadline_ns, Refusal* why);
  Outcome read_small(const BufferHandle& handle, const Memory& there, const Memory& into, uint64_t at, Refusal* why);
  Outcome read_kernel(const BufferHandle& handle, const Memory& there, const Memory& into, uint64_t at, Clock& clock,
                      int64_t deadline_ns, Refusal* why);

  const Contact contact_;
  const Paths paths_;
  UniqueFd pidfd_;
  Mapping table_;
  std::string why_no_kernel_, why_no_table_;
  bool for_now_ = false;
  std::atomic<bool> may_be_written_{true};
  std::atomic<Admitted> admitted_{Admitted::kUnknown};
  mutable std::mutex mutex_;  // a leaf
  std::map<uint64_t, std::shared_ptr<Map>> maps_;  // by inode
  std::map<uint32_t, Export> exports_;             // by index of the buffer
  std::map<std::vector<std::byte>, Allocation> allocations_;  // by handle
  uint64_t uses_ = 0;
};

}  // namespace monarch
