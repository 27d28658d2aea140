#include "monarch/host/start/launch.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

using Texts = std::vector<std::string>;

ByteSpan span_of(const std::string& bytes) { return as_byte_span(bytes.data(), bytes.size()); }

LaunchDefaults python_host() {
  LaunchDefaults host;
  host.interpreter = host.forkable = "/usr/bin/python";
  host.args = {"-c", "worker"};
  host.env = {"PATH=/bin", "OMP_NUM_THREADS=1", "HOME=/root"};
  host.new_only = {"OMP_", "PYTHON"};
  host.fork_server = {"/usr/bin/python", "-c", "server"};
  host.payload = "of the host";
  return host;
}

LaunchOrder order_for(const LaunchRequest& request) {
  LaunchOrder order;
  order.mesh = 7;
  order.payload = "of the order";
  order.launches = {request};
  return order;
}

Launch completed(const LaunchRequest& request, const LaunchDefaults& host = python_host()) {
  const auto launches = complete(order_for(request), host, python_host().env);
  EXPECT_EQ(launches.size(), 1u);
  return launches.at(0);
}

WorkerPayload payload_of(const Launch& launch) { return decode_worker_payload(span_of(launch.payload)).value(); }

LaunchRequest with_command(LaunchCommand command) {
  LaunchRequest request;
  request.command = std::move(command);
  return request;
}

// ---- On the way ----

TEST(Launch, AnOrderArrivesAsItWas) {
  LaunchCommand command{"python", "name", {"-c", "\xff not UTF-8"}, {{"A", "1"}, {"B", std::nullopt}}, false};
  LaunchOrder order = order_for(with_command(command));
  order.are_hosts = order.are_awaited = true;
  order.interpreter = "/opt/python";
  LaunchRequest& request = order.launches[0];
  request.prefix = {"numactl", "--membind=0"};
  request.label = "rank {'gpus': 1/2} of 'procs'";
  request.output = {"procs", 1, false, "/tmp/log"};
  request.coordinates = {0, 300};
  request.tail_lines = 4'000'000'000;
  request.key.emplace().fill(std::byte{7});
  auto arrived = decode_launch_order(span_of(encode(order)));
  ASSERT_TRUE(arrived.ok()) << arrived.error().message;
  EXPECT_TRUE(arrived->are_awaited);
  EXPECT_EQ(arrived->mesh, 7u);
  EXPECT_TRUE(arrived->are_hosts);
  EXPECT_EQ(arrived->interpreter, "/opt/python");
  EXPECT_EQ(arrived->payload, "of the order");
  ASSERT_EQ(arrived->launches.size(), 1u);
  const LaunchRequest& there = arrived->launches[0];
  EXPECT_EQ(there.command, command);
  EXPECT_EQ(there.prefix, request.prefix);
  EXPECT_EQ(there.label, request.label);
  EXPECT_EQ(there.output.mesh, "procs");
  EXPECT_EQ(there.output.rank, 1);
  EXPECT_FALSE(there.output.prefix);
  EXPECT_EQ(there.output.log_file, "/tmp/log");
  EXPECT_EQ(there.coordinates, request.coordinates);
  EXPECT_EQ(there.tail_lines, 4'000'000'000u);
  EXPECT_EQ(there.key, request.key);
  EXPECT_EQ(complete(*arrived, python_host(), {})[0].key, request.key);
}

TEST(Launch, DefaultsArriveAsTheyWere) {
  auto arrived = decode_launch_defaults(span_of(encode(python_host())));
  ASSERT_TRUE(arrived.ok()) << arrived.error().message;
  EXPECT_EQ(encode(*arrived), encode(python_host()));
  EXPECT_EQ(arrived->fork_server, python_host().fork_server);
}

// What a later version adds is not understood, and does no harm.
TEST(Launch, ALongerOrderIsRead) {
  ValueWriter writer;
  writer.begin_tuple(7);
  writer.integer(1);
  writer.boolean(false);
  writer.str("");
  writer.str("payload");
  writer.begin_tuple(0);
  writer.boolean(false);
  writer.str("of a later version");
  auto order = decode_launch_order(writer.written());
  ASSERT_TRUE(order.ok()) << order.error().message;
  EXPECT_EQ(order->payload, "payload");
}

TEST(Launch, WhatExecveWouldCutIsRefused) {
  const std::string nul("a\0b", 3);
  for (const LaunchCommand& bad : {LaunchCommand{nul, {}, {}, {}, true}, LaunchCommand{"p", nul, {}, {}, true},
                                   LaunchCommand{"p", {}, {nul}, {}, true}, LaunchCommand{"p", {}, {}, {{nul, "1"}}, true},
                                   LaunchCommand{"p", {}, {}, {{"A", nul}}, true}}) {
    auto order = decode_launch_order(span_of(encode(order_for(with_command(bad)))));
    ASSERT_FALSE(order.ok());
    EXPECT_NE(order.error().message.find("NUL"), std::string::npos) << order.error().message;
  }
}

TEST(Launch, WhatIsNoCommandIsRefused) {
  for (const LaunchCommand& bad : {LaunchCommand{"", {}, {}, {}, true}, LaunchCommand{"p", {}, {}, {{"", "1"}}, true},
                                   LaunchCommand{"p", {}, {}, {{"A=B", "1"}}, true}}) {
    EXPECT_FALSE(decode_launch_order(span_of(encode(order_for(with_command(bad))))).ok());
  }
  LaunchOrder order = order_for({});
  order.launches.resize(LaunchOrder::kLaunchesMax + 1);
  EXPECT_FALSE(decode_launch_order(span_of(encode(order))).ok());
  std::string cut = encode(order_for({}));
  cut.pop_back();
  EXPECT_FALSE(decode_launch_order(span_of(cut)).ok());
}

// ---- Fork or exec ----

TEST(Launch, TheUsualIsAForkThatIsGivenItsEnvironment) {
  const Launch launch = completed({});
  EXPECT_TRUE(launch.use_fork_server);
  const WorkerPayload payload = payload_of(launch);
  EXPECT_EQ(payload.of_host, "of the host");
  EXPECT_EQ(payload.of_order, "of the order");
  EXPECT_EQ(payload.env, python_host().env);
}

TEST(Launch, ACommandThatIsTheUsualOneIsAForkToo) {
  const Launch launch =
      completed(with_command({"/usr/bin/python", {}, {"-c", "worker"}, {{"A", "1"}, {"HOME", {}}}, true}));
  EXPECT_TRUE(launch.use_fork_server);
  EXPECT_EQ(payload_of(launch).env, (Texts{"PATH=/bin", "OMP_NUM_THREADS=1", "A=1"}));
}

TEST(Launch, WhatOnlyANewInterpreterTakesUpIsAnExec) {
  const Launch launch =
      completed(with_command({"/usr/bin/python", {}, {"-c", "worker"}, {{"OMP_NUM_THREADS", "2"}}, true}));
  EXPECT_FALSE(launch.use_fork_server);
  EXPECT_EQ(launch.argv, (Texts{"/usr/bin/python", "-c", "worker"}));
  EXPECT_EQ(launch.env, (Texts{"PATH=/bin", "HOME=/root", "OMP_NUM_THREADS=2"}));
  EXPECT_EQ(payload_of(launch).env, launch.env);
}

TEST(Launch, AnotherProgramKeepsTheEnvironmentThatItMakes) {
  const Launch launch = completed(with_command({"sh", "worker", {"run"}, {{"A", "1"}}, false}));
  EXPECT_FALSE(launch.use_fork_server);
  EXPECT_EQ(launch.program, "sh");
  EXPECT_EQ(launch.argv, (Texts{"worker", "run"}));
  EXPECT_EQ(launch.env, (Texts{"A=1"}));
  EXPECT_EQ(payload_of(launch).env, std::nullopt);
}

TEST(Launch, AnotherInterpreterIsThatOfTheOrder) {
  LaunchOrder order = order_for({});
  order.interpreter = "/opt/python";
  const Launch launch = complete(order, python_host(), python_host().env).at(0);
  EXPECT_FALSE(launch.use_fork_server);
  EXPECT_EQ(launch.argv, (Texts{"/opt/python", "-c", "worker"}));
  EXPECT_EQ(payload_of(launch).env, std::nullopt);
}

// User code starts it, with an environment of its own making.
TEST(Launch, WhatIsAwaitedIsNeitherForkedNorGivenAnEnvironment) {
  LaunchOrder order = order_for({});
  order.are_awaited = true;
  EXPECT_FALSE(wants_fork_server(order, python_host()));
  const Launch launch = complete(order, python_host(), python_host().env).at(0);
  EXPECT_TRUE(launch.is_awaited);
  EXPECT_FALSE(launch.use_fork_server);
  EXPECT_EQ(payload_of(launch).env, std::nullopt);
  EXPECT_EQ(payload_of(launch).of_order, "of the order");
}

TEST(Launch, APrefixStartsTheCommand) {
  LaunchRequest request;
  request.prefix = {"taskset", "-c", "0"};
  const Launch launch = completed(request);
  EXPECT_FALSE(launch.use_fork_server);
  EXPECT_EQ(launch.program, "taskset");
  EXPECT_EQ(launch.argv, (Texts{"taskset", "-c", "0", "/usr/bin/python", "-c", "worker"}));
}

TEST(Launch, AHostWithoutAForkServerExecsWhatItWouldFork) {
  LaunchDefaults host = python_host();
  host.fork_server.clear();
  const Launch launch = completed({}, host);
  EXPECT_FALSE(launch.use_fork_server);
  EXPECT_EQ(payload_of(launch).env, host.env);
  EXPECT_FALSE(wants_fork_server(order_for({}), host));
  EXPECT_TRUE(wants_fork_server(order_for({}), python_host()));
}

}  // namespace
}  // namespace monarch
