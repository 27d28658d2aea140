/* Limit program: two single-producer byte rings in one shared mapping, as a Python extension (module `_ring`).
 *
 *   create()                    maps the two rings; call it before fork, the mapping is inherited
 *   send(ring, bytes)           one message; waits (yielding) while the ring is full
 *   recv(ring, spin) -> bytes   the next message: polls for up to `spin` seconds, yielding every 64 pauses, then sleeps
 *                               on a futex; the GIL is released while it waits
 *   ready(ring) -> bool         whether a message is there
 *
 * One sender process and one receiver process per ring. No supervision, no ordering across senders, no context: this is
 * the floor under a Python-to-Python call, not a transport.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RING_BYTES (1u << 22)
#define WRAP_MARK 0xffffffffu

typedef struct {
  _Alignas(64) _Atomic unsigned head;    /* bytes published, by the sender */
  _Alignas(64) _Atomic unsigned tail;    /* bytes consumed, by the receiver */
  _Alignas(64) _Atomic unsigned asleep;  /* what the receiver sleeps on: a sender may clear it when it is set again */
  _Alignas(64) char data[RING_BYTES];
} Ring;

static Ring *rings;

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

static void pause_step(unsigned *step) {
  __builtin_ia32_pause();
  if ((++*step & 63) == 0) sched_yield();
}

static unsigned padded(unsigned length) { return (4 + length + 7) & ~7u; }

static PyObject *ring_create(PyObject *self, PyObject *unused) {
  (void)self, (void)unused;
  rings = mmap(NULL, 2 * sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (rings == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
  Py_RETURN_NONE;
}

static PyObject *ring_send(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  (void)self, (void)count;
  Ring *ring = &rings[PyLong_AsLong(arguments[0])];
  char *bytes;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(arguments[1], &bytes, &size) < 0) return NULL;
  unsigned length = (unsigned)size, need = padded(length), step = 0;
  unsigned head = atomic_load_explicit(&ring->head, memory_order_relaxed);
  unsigned offset = head & (RING_BYTES - 1);
  unsigned skip = offset + need > RING_BYTES ? RING_BYTES - offset : 0;
  while (head + skip + need - atomic_load_explicit(&ring->tail, memory_order_acquire) > RING_BYTES) pause_step(&step);
  if (skip) {
    *(unsigned *)(ring->data + offset) = WRAP_MARK;
    head += skip;
    offset = 0;
  }
  *(unsigned *)(ring->data + offset) = length;
  memcpy(ring->data + offset + 4, bytes, length);
  atomic_store(&ring->head, head + need);
  if (atomic_load(&ring->asleep)) {
    atomic_store(&ring->asleep, 0);
    syscall(SYS_futex, &ring->asleep, FUTEX_WAKE, 1, NULL, NULL, 0);
  }
  Py_RETURN_NONE;
}

static void wait_for_message(Ring *ring, unsigned tail, double spin_seconds) {
  double end = seconds_now() + spin_seconds;
  unsigned step = 0;
  while (atomic_load_explicit(&ring->head, memory_order_acquire) == tail) {
    pause_step(&step);
    if ((step & 15) != 0 || seconds_now() <= end) continue;
    atomic_store(&ring->asleep, 1);
    if (atomic_load(&ring->head) == tail) syscall(SYS_futex, &ring->asleep, FUTEX_WAIT, 1, NULL, NULL, 0);
    atomic_store(&ring->asleep, 0);
  }
}

static PyObject *ring_recv(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  (void)self, (void)count;
  Ring *ring = &rings[PyLong_AsLong(arguments[0])];
  double spin_seconds = PyFloat_AsDouble(arguments[1]);
  unsigned tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
  if (atomic_load_explicit(&ring->head, memory_order_acquire) == tail) {
    Py_BEGIN_ALLOW_THREADS
    wait_for_message(ring, tail, spin_seconds);
    Py_END_ALLOW_THREADS
  }
  unsigned offset = tail & (RING_BYTES - 1), length = *(unsigned *)(ring->data + offset);
  if (length == WRAP_MARK) {
    tail += RING_BYTES - offset;
    offset = 0;
    length = *(unsigned *)ring->data;
  }
  PyObject *message = PyBytes_FromStringAndSize(ring->data + offset + 4, length);
  atomic_store_explicit(&ring->tail, tail + padded(length), memory_order_release);
  return message;
}

static PyObject *ring_ready(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  (void)self, (void)count;
  Ring *ring = &rings[PyLong_AsLong(arguments[0])];
  return PyBool_FromLong(atomic_load_explicit(&ring->head, memory_order_acquire) !=
                         atomic_load_explicit(&ring->tail, memory_order_relaxed));
}

static PyMethodDef methods[] = {
    {"create", ring_create, METH_NOARGS, NULL},
    {"send", (PyCFunction)(void (*)(void))ring_send, METH_FASTCALL, NULL},
    {"recv", (PyCFunction)(void (*)(void))ring_recv, METH_FASTCALL, NULL},
    {"ready", (PyCFunction)(void (*)(void))ring_ready, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_ring", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__ring(void) { return PyModule_Create(&module); }
