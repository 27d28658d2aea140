#include "monarch/host/stacks/symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "monarch/base/demangle.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

constexpr uint64_t kTableMax = uint64_t{256} << 20;
constexpr size_t kNameMax = 1024;

class ElfFile {
 public:
  explicit ElfFile(const std::string& path) : file_(sys::open_file(path.c_str(), O_RDONLY)) {
    Elf64_Ehdr header;
    if (!file_ || !read(0, &header, sizeof header)) return;
    const unsigned char wanted[] = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB};
    if (std::memcmp(header.e_ident, wanted, sizeof wanted) != 0) return;
    if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_shentsize != sizeof(Elf64_Shdr)) return;
    segments_ = read_table<Elf64_Phdr>(header.e_phoff, header.e_phnum);
    sections_ = read_table<Elf64_Shdr>(header.e_shoff, header.e_shnum);
  }

  // Where what lies there in the file is found by its symbols.
  std::optional<uint64_t> address_of(uint64_t offset) const {
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_LOAD || offset < segment.p_offset) continue;
      if (offset - segment.p_offset < segment.p_filesz) return segment.p_vaddr + (offset - segment.p_offset);
    }
    return std::nullopt;
  }

  struct Symbols {
    std::vector<Elf64_Sym> table;
    uint64_t names = 0;  // where they begin in the file
    uint64_t names_size = 0;
  };
  // The full table, or of a stripped file what it exports.
  Symbols symbols() const {
    for (const uint32_t type : {uint32_t{SHT_SYMTAB}, uint32_t{SHT_DYNSYM}}) {
      for (const Elf64_Shdr& section : sections_) {
        if (section.sh_type != type || section.sh_link >= sections_.size()) continue;
        const Elf64_Shdr& names = sections_[section.sh_link];
        return {read_table<Elf64_Sym>(section.sh_offset, section.sh_size / sizeof(Elf64_Sym)), names.sh_offset,
                names.sh_size};
      }
    }
    return {};
  }

  std::string name_of(const Symbols& symbols, const Elf64_Sym& symbol) const {
    if (symbol.st_name >= symbols.names_size) return {};
    std::string name(std::min<uint64_t>(kNameMax, symbols.names_size - symbol.st_name), '\0');
    const ssize_t size = pread(file_.get(), name.data(), name.size(), place(symbols.names + symbol.st_name));
    name.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
    return name.substr(0, name.find('\0'));
  }

 private:
  static off_t place(uint64_t offset) { return static_cast<off_t>(offset & INT64_MAX); }
  bool read(uint64_t offset, void* into, uint64_t size) const {
    return pread(file_.get(), into, size, place(offset)) == static_cast<ssize_t>(size);
  }
  template <typename Entry>
  std::vector<Entry> read_table(uint64_t offset, uint64_t count) const {
    if (count > kTableMax / sizeof(Entry)) return {};
    const off_t file_size = lseek(file_.get(), 0, SEEK_END);
    if (file_size < 0 || count * sizeof(Entry) > static_cast<uint64_t>(file_size)) return {};
    std::vector<Entry> table(count);
    if (!read(offset, table.data(), count * sizeof(Entry))) table.clear();
    return table;
  }

  const UniqueFd file_;
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Shdr> sections_;
};

// As a person would call it: `monarch::Driver::wait`.
std::string readable(const std::string& name) {
  const std::string text = demangled(name);
  if (text == name) return name.substr(0, name.find('@'));
  std::string plain;  // without the arguments of templates
  int depth = 0;
  for (const char* at = text.c_str(); *at != 0; ++at) {
    if (*at == '(' && depth == 0 && std::strncmp(at, "(anonymous namespace)", 21) != 0) break;
    if (*at == '<') ++depth;
    if (depth == 0) plain += *at;
    if (*at == '>' && depth > 0) --depth;
  }
  return plain;
}

}  // namespace

std::vector<std::string> function_names(const std::string& path, std::span<const uint64_t> offsets) {
  std::vector<std::string> names(offsets.size());
  const ElfFile file(path);
  std::vector<std::pair<uint64_t, size_t>> wanted;  // by address
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (const auto address = file.address_of(offsets[i])) wanted.emplace_back(*address, i);
  }
  if (wanted.empty()) return names;
  std::sort(wanted.begin(), wanted.end());
  const ElfFile::Symbols symbols = file.symbols();
  for (const Elf64_Sym& symbol : symbols.table) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_size == 0) continue;
    auto at = std::lower_bound(wanted.begin(), wanted.end(), std::pair<uint64_t, size_t>(symbol.st_value, 0));
    for (; at != wanted.end() && at->first - symbol.st_value < symbol.st_size; ++at) {
      if (names[at->second].empty()) names[at->second] = readable(file.name_of(symbols, symbol));
    }
  }
  return names;
}

}  // namespace monarch
