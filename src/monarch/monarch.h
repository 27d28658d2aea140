// The C++ API in one include: actors, meshes, futures, the runtime of a program. See examples/cpp/hello.cc.
#pragma once

#include "monarch/actor/actor.h"
#include "monarch/actor/errors.h"
#include "monarch/actor/supervisor.h"
#include "monarch/host/controller.h"
#include "monarch/loop/task.h"
#include "monarch/mesh/actor_mesh.h"
#include "monarch/mesh/future.h"
#include "monarch/mesh/proc_mesh.h"
#include "monarch/mesh/value_mesh.h"
