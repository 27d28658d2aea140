#include "monarch/wire/failure.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

Failure killed() {
  Failure failure;
  failure.kind = Failure::Kind::kExited;
  failure.node = (uint64_t{1} << 62) + 5;
  failure.actor = 77;
  failure.rank = 2;
  failure.coordinates = {1, 0};
  failure.mesh = "trainer";
  failure.label = "rank {'gpus': 2/4} of procs 'trainer'";
  failure.host = "node17";
  failure.pid = 4711;
  failure.status.known = true;
  failure.status.signal = 9;
  failure.detail = std::string("any \xff bytes");
  failure.last_lines = "out of memory\nsorry";
  return failure;
}

TEST(Failure, SurvivesTheWay) {
  Failure out = killed();
  out.of_host = out.cut_off = true;
  out.last_lines.clear();
  out.status.launcher = "evicted";
  out.status.launcher_tail = "no disk";
  EXPECT_NE(out.text().find("; its launcher says: evicted"), std::string::npos);
  EXPECT_TRUE(out.text().ends_with("\nThe last that it printed to stderr:\n  no disk")) << out.text();
  const std::string bytes = out.encoded();
  auto in = Failure::decode(as_byte_span(bytes.data(), bytes.size()));
  ASSERT_TRUE(in.ok());
  EXPECT_EQ(in->kind, out.kind);
  EXPECT_EQ(in->node, out.node);
  EXPECT_EQ(in->actor, out.actor);
  EXPECT_EQ(in->rank, out.rank);
  EXPECT_EQ(in->coordinates, out.coordinates);
  EXPECT_EQ(in->mesh, out.mesh);
  EXPECT_EQ(in->host, out.host);
  EXPECT_EQ(in->pid, out.pid);
  EXPECT_EQ(in->status.signal, 9);
  EXPECT_EQ(in->detail, out.detail);
  EXPECT_EQ(in->text(), out.text());
}

TEST(Failure, FitsIntoAControlFrameWhateverItsTextsAre) {
  Failure out = killed();
  const std::string euro = "\xe2\x82\xac";
  for (std::string* text : {&out.mesh, &out.label, &out.host, &out.detail, &out.last_lines, &out.status.because,
                            &out.status.launcher, &out.status.launcher_tail}) {
    text->clear();
    for (int i = 0; i < 1'000'000; ++i) *text += euro;
    *text += "!";
  }
  out.coordinates.assign(1000, 7);
  const std::string bytes = out.encoded();
  EXPECT_LT(bytes.size(), size_t{900} << 10);
  auto in = Failure::decode(as_byte_span(bytes.data(), bytes.size()));
  ASSERT_TRUE(in.ok());
  EXPECT_TRUE(in->label.starts_with(euro + euro) && in->label.ends_with(euro + "!"));
  const size_t gap = in->label.find(" [... ");
  ASSERT_NE(gap, std::string::npos);
  EXPECT_EQ(in->label.substr(gap - 3, 3), euro) << "no character is cut";
  EXPECT_EQ(shortened("short"), "short");
}

TEST(Failure, SaysWhatFailedAndHow) {
  EXPECT_EQ(killed().headline(),
            "the process this actor was running on failed: Killed(sig=9) "
            "(rank {'gpus': 2/4} of procs 'trainer', pid 4711)");
  EXPECT_EQ(killed().text(), killed().headline() +
                                 "\nThe last that it printed to stderr:\n  out of memory\n  sorry");
  Failure host = killed();
  host.of_host = true;
  EXPECT_EQ(host.headline().find("the host of the process this actor was running on failed: Killed"), 0u);
  Failure none(Failure::Kind::kNotStarted, not_attached("tcp://10.0.0.7:4444", "connection refused"));
  none.label = "rank {'hosts': 1/2}";
  EXPECT_EQ(none.headline(),
            "the host at tcp://10.0.0.7:4444 cannot be attached to: connection refused (rank {'hosts': 1/2})");
  EXPECT_EQ(Failure(Failure::Kind::kStopped, "no more work").text(), "stopped: no more work");
  EXPECT_EQ(Failure("too large").text(), "too large");
  Failure because = killed();
  because.status.because = "was killed because the fork server died";
  const std::string bytes = because.encoded();
  EXPECT_NE(Failure::decode(as_byte_span(bytes.data(), bytes.size()))->text().find("because the fork server"),
            std::string::npos);
}

TEST(Failure, IsOnlyReadFromAWholeRecord) {
  const std::string bytes = killed().encoded();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Failure::decode(as_byte_span(bytes.data(), size)).ok()) << size;
  }
  EXPECT_FALSE(Failure::decode(as_byte_span("stopped", 7)).ok());
}

TEST(Failure, AReaderPassesOverWhatItDoesNotKnow) {
  ValueWriter writer;
  killed().encode(writer);
  std::string bytes(reinterpret_cast<const char*>(writer.data()), writer.size());
  bytes.push_back(static_cast<char>(ValueTag::kNone));
  ++bytes[1];  // the count of fields, little-endian behind its tag
  auto in = Failure::decode(as_byte_span(bytes.data(), bytes.size()));
  ASSERT_TRUE(in.ok());
  EXPECT_EQ(in->pid, 4711);
}

}  // namespace
}  // namespace monarch
