// The order in which locks may be taken: a thread that holds one takes only those that stand below it here. Debug and
// sanitizer builds check every lock (base/mutex.h) and end the process at the first that is out of order, whether or not
// two threads meet in it.
//
// A lock that is not listed guards a leaf: nothing of ours is called while it is held.
#pragma once

#include <cstdint>

namespace monarch {

enum class LockRank : uint16_t {
  kNone = 0,
  // ---- net ----
  // Before all others: who starts or ends a link holds nothing, since what it waits for may want anything.
  kLinkLife = 40,       // a link's start against its end
  kLaneDelivery = 50,   // what a lane has read is being told
  kSessionDelivery = 60,  // ResumingLink: which carrier is heard, how much has come; held while a frame is told

  kNodeArrivals = 70,     // Trees: what comes from the gateway of another host; held while it is told

  // bindings/python: 100-199

  // ---- actor: cells and ports ----
  kPort = 310,           // PortCell: the messages and the waits of one port
  kInflowPorts = 320,    // Inflow: the ports that an actor has opened
  kInflow = 330,         // Inflow: which nodes have been asked to hold back

  // ---- actor: the parts of a node, none of which is taken inside another but as listed ----
  kNodeReductions = 390,  // Reductions: answers that are held to be combined; held while they are sent
  kNodeForwarding = 400,  // Forwarding: who has been asked to hold back
  kNodeTrees = 405,      // Trees: casts to other hosts that are under way; held while frames for them are numbered and sent
  kNodeNotices = 407,    // Trees: which answers gateways are to be told of
  kNodeDirectory = 410,  // Directory: cells, epitaphs, lazy actors, early messages
  kNodeRoutes = 430,     // Routes: links, the dead, what could not be sent
  kNodeFlow = 450,       // Flow: actors that have asked to hold back
  kNodeCalls = 460,      // Calls: slots
  kNodeDeadlines = 470,  // Deadlines: taken inside kNodeCalls

  // ---- net: peers ----
  kSessions = 500,       // Sessions: those that others have opened, carriers
  kSession = 510,        // ResumingLink: its peer, its carrier, its end
  kSessionLane = 520,    // ResumingLink: what is not acknowledged; the order in which frames are sent

  kTcpPlaces = 540,      // TcpTransport: where nodes are

  // ---- net: links ----
  kShmLinkFinish = 550,  // who tells the end of a link
  kUnixLink = 560,       // the same
  kShmLinkSend = 570,    // the ring that is written, what waits for room in it, slabs lent to the peer
  kInprocLink = 580,     // what waits for the receiver
  // ---- net: their sockets ----
  kLaneRead = 650,
  kLaneWrite = 660,
  kTls = 670,            // TlsChannel: what OpenSSL knows of it
  kTlsUnder = 675,       // the same, of one that others go over, or nothing does
  kShmLinkView = 680,    // segments of the peer
  // ---- net: memory ----
  kReceived = 690,       // segments of all peers and the slabs of forked children (Received); held over a fork()
  kArena = 700,

  // ---- loop ----
  kDriver = 840,   // which ring has which index of the bell (Driver)
  kReactor = 880,  // descriptors, posted tasks and timers (Reactor); held over a fork() as the last

  // ---- leafs ----
  kTurnstile = 900,  // who comes next
};

}  // namespace monarch
