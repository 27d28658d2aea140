#include "monarch/host/output/speakers.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace monarch {

namespace {

std::string hex(NodeId node) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(node));
  return text;
}

std::string bracketed(const std::string& text) { return "[" + text + "] "; }

// Names of meshes are anybody's. In files these end where they seem to.
std::string in_files(std::string name) {
  const auto is_odd = [](char c) { return static_cast<unsigned char>(c) < ' ' || std::strchr("[]/", c) != nullptr; };
  std::replace_if(name.begin(), name.end(), is_odd, '_');
  return name;
}

}  // namespace

std::string Speakers::unique_name(const std::string& parent, const std::string& name) {
  const int number = ++names_[parent + name];
  return number == 1 ? name : name + "#" + std::to_string(number);
}

Speaker& Speakers::add(const OutputRequest& request) {
  auto made = std::make_unique<Speaker>();
  Speaker& speaker = *made;
  const Speaker* parent = find(request.parent);
  std::shared_ptr<SpeakerMesh> mesh = meshes_[request.mesh].lock();
  if (!mesh) {
    std::erase_if(meshes_, [](const auto& entry) { return entry.second.expired(); });
    mesh = std::make_shared<SpeakerMesh>();
    meshes_[request.mesh] = mesh;
    if (parent != nullptr) {
      mesh->parent = parent->who + "/";
      mesh->parent_named = parent->who_named + "/";
      mesh->parent_in_files = parent->who_in_files + "/";
    }
    mesh->name = unique_name(mesh->parent_named, request.name.mesh);
  }
  speaker.node = request.nodes.front();
  speaker.rank = request.name.rank;
  speaker.mesh = mesh;
  const bool scalar = speaker.rank < 0;
  const std::string rank = scalar ? "" : std::to_string(speaker.rank);
  speaker.who = mesh->parent + (scalar ? mesh->name : rank);
  speaker.who_named = mesh->parent_named + (scalar ? mesh->name : mesh->name + " " + rank);
  speaker.who_in_files = mesh->parent_in_files + in_files(mesh->name) + " " + (scalar ? "0" : rank);
  if (request.name.prefix) {
    speaker.plain = bracketed(speaker.who);
    speaker.named = bracketed(speaker.who_named);
  }
  speaker.full = bracketed(host_name_ + " " + hex(speaker.node));
  if (request.name.prefix) speaker.full += bracketed(scalar ? "0" : rank);
  for (int i = 0; i < kStreams; ++i) {
    speaker.streams[i].speaker = &speaker;
    speaker.streams[i].which = static_cast<OutputStream>(i);
  }
  speakers_[speaker.node] = std::move(made);
  return speaker;
}

Speaker* Speakers::find(NodeId node) {
  auto found = speakers_.find(node);
  return found == speakers_.end() ? nullptr : found->second.get();
}

void Speakers::remove(Speaker& speaker) {
  if (speaker.log_file != nullptr) {
    speaker.log_file->end(*speaker.voice);
    ended_in_files_.push_back({speaker.node, speaker.log_file, std::move(speaker.who_in_files)});
    if (ended_in_files_.size() > kEndedInFilesMax) ended_in_files_.pop_front();
  }
  Ended ended{speaker.node, {}};
  for (int i = 0; i < kStreams; ++i) ended.tails[i] = std::move(speaker.streams[i].tail);
  ended_.push_back(std::move(ended));
  if (ended_.size() > kEndedMax) ended_.pop_front();
  speakers_.erase(speaker.node);
}

std::string Speakers::tail(NodeId node, OutputStream stream, uint32_t lines) {
  const auto index = static_cast<size_t>(stream);
  if (Speaker* speaker = find(node)) return std::string(speaker->streams[index].tail.last(lines));
  for (const Ended& ended : ended_) {
    if (ended.node == node) return std::string(ended.tails[index].last(lines));
  }
  return "";
}

std::pair<LogFile*, std::string> Speakers::place_in_files(NodeId node) {
  if (const Speaker* speaker = find(node)) return {speaker->log_file, speaker->who_in_files};
  for (const EndedInFiles& ended : ended_in_files_) {
    if (ended.node == node) return {ended.file, ended.who};
  }
  return {nullptr, ""};
}

void Speakers::note_printed(SpeakerMesh& mesh) {
  if (std::exchange(mesh.has_printed, true)) return;
  mesh.named = std::exchange(any_has_printed_, true);
}

const std::string& Speakers::prefix(Speaker& speaker) {
  note_printed(*speaker.mesh);
  if (speaker.options.long_prefix) return speaker.full;
  return speaker.mesh->named ? speaker.named : speaker.plain;
}

std::string Speakers::prefix(const SpeakerMesh& mesh, const LineFolder::Group& group) const {
  const std::string& parent = mesh.named ? mesh.parent_named : mesh.parent;
  if (group.ranks.empty()) return bracketed(parent + mesh.name);
  const std::string ranks = ranks_text(group.ranks);
  const bool several = ranks.find_first_not_of("0123456789") != std::string::npos;
  return bracketed(parent + (mesh.named ? mesh.name + " " : "") + (several ? "ranks " : "") + ranks);
}

}  // namespace monarch
