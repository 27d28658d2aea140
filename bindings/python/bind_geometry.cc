// Extent, Point, Slice, Shape, Region: the geometry values of monarch/mesh as Python sees them.
#include <nanobind/make_iterator.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "monarch/mesh/region.h"

namespace nb = nanobind;

namespace monarch {
namespace {

// Python has two names for a region: a Shape is one seen as an array, with methods that slice it.
struct Shape {
  Region region;
  friend bool operator==(const Shape&, const Shape&) = default;
};

[[noreturn]] void raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

template <typename T>
T value_or_raise(Result<T> result, PyObject* type = PyExc_ValueError) {
  if (!result) raise(type, result.error().message);
  return std::move(result).value();
}

// Whatever has __index__ (NumPy's integers too); Python's own TypeError or OverflowError otherwise.
int64_t to_int(nb::handle value) {
  nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  int64_t result = PyLong_AsLongLong(index.ptr());
  if (result == -1 && PyErr_Occurred()) throw nb::python_error();
  return result;
}

// For places where the API promises an OverflowError for a negative number.
int64_t to_unsigned(nb::handle value, const char* what) {
  int64_t result = to_int(value);
  if (result < 0) {
    raise(PyExc_OverflowError, std::string(what) + " must not be negative, got " + std::to_string(result));
  }
  return result;
}

void check_sequence(nb::handle values, const char* of_what) {
  if (PyObject_HasAttrString(values.ptr(), "__iter__") || PySequence_Check(values.ptr())) return;
  PyErr_Format(PyExc_TypeError, "expected a sequence of %s, but got %R", of_what, values.ptr());
  throw nb::python_error();
}

std::vector<int64_t> to_ints(nb::handle values) {
  check_sequence(values, "int");
  std::vector<int64_t> result;
  for (nb::handle value : nb::iter(values)) result.push_back(to_int(value));
  return result;
}

std::string to_label(nb::handle value) {
  if (!PyUnicode_Check(value.ptr())) {
    raise(PyExc_TypeError, "a dimension label must be a str, got " + std::string(nb::repr(value).c_str()));
  }
  return nb::cast<std::string>(value);
}

std::vector<std::string> to_labels(nb::handle values) {
  if (PyUnicode_Check(values.ptr())) {
    raise(PyExc_TypeError,
          "labels must be a sequence of str, but got " + std::string(nb::repr(values).c_str()));
  }
  check_sequence(values, "str");
  std::vector<std::string> result;
  for (nb::handle value : nb::iter(values)) result.push_back(to_label(value));
  return result;
}

Range to_range(nb::slice slice) {
  Py_ssize_t start, stop, step;  // bounds beyond 63 bits are cut, a step of 0 raises
  if (PySlice_Unpack(slice.ptr(), &start, &stop, &step) < 0) throw nb::python_error();
  return {start, stop, step};
}

nb::object slice_item(const Slice& self, nb::handle key) {
  if (PySlice_Check(key.ptr())) {
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(key.ptr(), &start, &stop, &step) < 0) throw nb::python_error();
    if (step < 0) raise(PyExc_IndexError, "slice step must be positive, got " + std::to_string(step));
    Py_ssize_t count = PySlice_AdjustIndices(self.size(), &start, &stop, step);
    nb::list ranks;
    for (Py_ssize_t i = 0; i < count; ++i) ranks.append(self.rank_at(start + i * step));
    return nb::tuple(ranks);
  }
  int64_t index = to_int(key);
  if (index < 0) raise(PyExc_TypeError, "index must not be negative, got " + std::to_string(index));
  return nb::cast(value_or_raise(self.get(index), PyExc_IndexError));
}

nb::dict coordinates_dict(const Shape& self, nb::handle rank) {
  auto found = value_or_raise(self.region.slice().coordinates(to_unsigned(rank, "rank")));
  nb::dict result;
  for (size_t i = 0; i < found.size(); ++i) result[self.region.labels()[i].c_str()] = found[i];
  return result;
}

// The slice method of every mesh, whole: a loop over the members of a mesh slices once per member.
Shape shape_slice(const Shape& self, nb::dict dims) {
  Region region = self.region;
  for (auto [key, index] : dims) {
    std::string label = to_label(key);
    auto size = region.extent().size(label);
    if (!size) raise(PyExc_TypeError, "Shape does not have dimension labeled '" + label + "'");
    if (PySlice_Check(index.ptr())) {
      region = value_or_raise(region.select(label, to_range(nb::borrow<nb::slice>(index))));
    } else if (PyIndex_Check(index.ptr())) {
      int64_t at = to_int(index);
      if (at < 0 || at >= *size) raise(PyExc_IndexError, "index out of range");
      region = value_or_raise(region.at(label, at));
    } else {
      raise(PyExc_TypeError, "expected an int or a slice for dimension '" + label + "', but got " +
                                 std::string(nb::repr(index).c_str()));
    }
  }
  return {std::move(region)};
}

Shape shape_split(const Shape& self, nb::dict splits, nb::dict sizes) {
  std::vector<DimSplit> dims;
  for (auto [label, into] : splits) dims.push_back({to_label(label), to_labels(into)});
  std::vector<SizeConstraint> constraints;
  for (auto [label, size] : sizes) constraints.emplace_back(to_label(label), to_int(size));
  return {value_or_raise(self.region.split(dims, constraints))};
}

nb::list point_values(const Point& self) {
  nb::list values;
  for (size_t i = 0; i < self.extent().dim_count(); ++i) values.append(self.coordinate(i));
  return values;
}

nb::list point_items(const Point& self) {
  nb::list items;
  for (size_t i = 0; i < self.extent().dim_count(); ++i) {
    items.append(nb::make_tuple(self.extent().labels()[i], self.coordinate(i)));
  }
  return items;
}

nb::object iterate_labels(const Extent& extent) { return nb::iter(nb::cast(extent.labels())); }

// Equality, hash and pickling, alike for every type here.
template <typename T>
void def_equal_and_hash(nb::class_<T>& cls, size_t (*hash)(const T&)) {
  cls.def("__eq__", [](const T& a, const T& b) { return a == b; }, nb::is_operator());
  cls.def("__hash__", [hash](const T& self) {
    auto value = static_cast<Py_hash_t>(hash(self));
    return value == -1 ? Py_hash_t{-2} : value;
  });
}

// As in python/monarch/_core.pyi, which type checkers and the documentation read; a test compares.
constexpr char kExtentDoc[] = R"(Labels and sizes of a mesh, row-major, the first label the outermost.
Printed: ``{hosts: 2, gpus: 4}``.

Iteration and ``len`` are over labels; ``extent[label]`` is a size, of an unknown label a ``ValueError``.)";
constexpr char kPointDoc[] = R"(A rank together with its coordinates in an extent: a mapping of label to index.

So ``mesh.slice(**point)`` works. An unknown label is a ``ValueError``, also in ``get`` and ``in``. Printed with
sizes: ``{'hosts': 1/2, 'gpus': 1/4}``.)";
constexpr char kSliceDoc[] = R"(Which numbers a strided, multi-dimensional range names. ``monarch.NDSlice`` is this type.

Iteration, ``slice[i]`` and ``slice[a:b]`` go over the numbers, in row-major order of their places.)";
constexpr char kRegionDoc[] = R"(Labels over a ``Slice`` of base ranks, as ``Shape``.)";
constexpr char kShapeDoc[] =
    R"(Labels over a ``Slice``: a mesh, or a view of one that still knows the ranks of the whole.)";

template <typename T>
const T& expect(nb::handle value, const char* what) {
  if (!nb::isinstance<T>(value)) {
    PyErr_Format(PyExc_TypeError, "%s, but is %R", what, value.ptr());
    throw nb::python_error();
  }
  return nb::cast<const T&>(value);
}

void bind_extent(nb::module_& m) {
  nb::class_<Extent> cls(m, "Extent", kExtentDoc);
  cls.def(
      "__init__",
      [](Extent* self, nb::handle labels, nb::handle sizes) {
        if (sizes.is_none()) raise(PyExc_TypeError, "an Extent is made of labels and sizes: Extent(['gpus'], [8])");
        new (self) Extent(value_or_raise(Extent::create(to_labels(labels), to_ints(sizes))));
      },
      nb::arg("labels"), nb::arg("sizes") = nb::none());
  def_equal_and_hash<Extent>(cls, [](const Extent& self) { return self.hash(); });
  cls.def_prop_ro("labels", [](const Extent& self) { return self.labels(); })
      .def_prop_ro("sizes", [](const Extent& self) { return self.sizes(); })
      .def_prop_ro("nelements", &Extent::element_count)
      .def_prop_ro("region", [](const Extent& self) { return Region::row_major(self); })
      .def("keys", [](const Extent& self) { return self.labels(); })
      .def("__getitem__",
           [](const Extent& self, nb::handle label) { return value_or_raise(self.size(to_label(label))); })
      .def("__contains__",
           [](const Extent& self, nb::handle label) {
             return PyUnicode_Check(label.ptr()) && self.find(nb::cast<std::string>(label)) >= 0;
           })
      .def("__iter__", &iterate_labels)
      .def("__len__", &Extent::dim_count)
      .def("__repr__", &Extent::to_string)
      .def("__reduce__", [](nb::handle self) {
        const auto& extent = nb::cast<const Extent&>(self);
        return nb::make_tuple(self.type(), nb::make_tuple(extent.labels(), extent.sizes()));
      });
}

void bind_point(nb::module_& m) {
  auto coordinate = [](const Point& self, nb::handle label) {
    return value_or_raise(self.coordinate(to_label(label)));
  };
  nb::class_<Point> cls(m, "Point", kPointDoc);
  cls.def(
      "__init__",
      [](Point* self, nb::handle rank, nb::handle extent) {
        const auto& of = expect<Extent>(extent, "the extent of a Point must be an Extent(labels, sizes)");
        new (self) Point(value_or_raise(Point::create(to_int(rank), of)));
      },
      nb::arg("rank"), nb::arg("extent"));
  def_equal_and_hash<Point>(cls, [](const Point& self) { return self.hash(); });
  cls.def_prop_ro("rank", &Point::rank)
      .def_prop_ro("extent", [](const Point& self) { return self.extent(); })
      .def(
          "size",
          [](const Point& self, nb::handle label) { return value_or_raise(self.extent().size(to_label(label))); },
          nb::arg("label"))
      .def("__getitem__", coordinate)
      // An unknown label is an error in every spelling: asking for one is a mistake, not a question.
      .def(
          "get",
          [coordinate](const Point& self, nb::handle label, nb::handle) { return coordinate(self, label); },
          nb::arg("key"), nb::arg("default") = nb::none())
      .def("__contains__",
           [coordinate](const Point& self, nb::handle label) { return coordinate(self, label) >= 0; })
      .def("keys", [](const Point& self) { return self.extent().labels(); })
      .def("values", &point_values)
      .def("items", &point_items)
      .def("__iter__", [](const Point& self) { return iterate_labels(self.extent()); })
      .def("__len__", [](const Point& self) { return self.extent().dim_count(); })
      .def("__repr__", &Point::to_string)
      .def("__reduce__", [](nb::handle self) {
        const auto& point = nb::cast<const Point&>(self);
        return nb::make_tuple(self.type(), nb::make_tuple(point.rank(), point.extent()));
      });
}

void bind_slice(nb::module_& m) {
  nb::class_<Slice> cls(m, "Slice", kSliceDoc);
  cls.def(
      "__init__",
      [](Slice* self, nb::handle offset, nb::handle sizes, nb::handle strides) {
        new (self) Slice(value_or_raise(Slice::create(to_int(offset), to_ints(sizes), to_ints(strides))));
      },
      nb::arg("offset"), nb::arg("sizes"), nb::arg("strides"));
  def_equal_and_hash<Slice>(cls, [](const Slice& self) { return self.hash(); });
  cls.def_static(
         "new_row_major", [](nb::handle sizes) { return value_or_raise(Slice::row_major(to_ints(sizes))); },
         nb::arg("sizes"))
      .def_static(
          "from_list", [](nb::handle ranks) { return value_or_raise(Slice::from_list(to_ints(ranks))); },
          nb::arg("ranks"))
      .def_prop_ro("ndim", &Slice::dim_count)
      .def_prop_ro("offset", &Slice::offset)
      .def_prop_ro("sizes", [](const Slice& self) { return self.sizes(); })
      .def_prop_ro("strides", [](const Slice& self) { return self.strides(); })
      .def(
          "index",
          [](const Slice& self, nb::handle v) {
            return value_or_raise(self.index_of(to_unsigned(v, "value")));
          },
          nb::arg("value"))
      .def(
          "coordinates",
          [](const Slice& self, nb::handle v) {
            return value_or_raise(self.coordinates(to_unsigned(v, "value")));
          },
          nb::arg("value"))
      .def(
          "nditem",
          [](const Slice& self, nb::handle coords) {
            auto coordinates = to_ints(coords);
            return value_or_raise(self.rank_of(coordinates), PyExc_IndexError);
          },
          nb::arg("coordinates"))
      .def(
          "get",
          [](const Slice& self, nb::handle i) { return value_or_raise(self.get(to_unsigned(i, "index"))); },
          nb::arg("index"))
      .def("__getitem__", &slice_item)
      .def(
          "__iter__",
          [](const Slice& self) {
            return nb::make_iterator(nb::type<Slice>(), "SliceIterator", self.begin(), self.end());
          },
          nb::keep_alive<0, 1>())
      .def("__contains__",
           [](const Slice& self, nb::handle v) { return PyLong_Check(v.ptr()) && self.contains(to_int(v)); })
      .def("__len__", &Slice::size)
      .def("__repr__", &Slice::to_string)
      .def("__reduce__", [](nb::handle self) {
        const auto& slice = nb::cast<const Slice&>(self);
        return nb::make_tuple(self.type(), nb::make_tuple(slice.offset(), slice.sizes(), slice.strides()));
      });
}

void bind_region(nb::module_& m) {
  nb::class_<Region> cls(m, "Region", kRegionDoc);
  cls.def(
      "__init__",
      [](Region* self, nb::handle labels, nb::handle slice) {
        const auto& ranks = expect<Slice>(slice, "the slice of a Region must be an NDSlice");
        new (self) Region(value_or_raise(Region::create(to_labels(labels), ranks)));
      },
      nb::arg("labels"), nb::arg("slice"));
  def_equal_and_hash<Region>(cls, [](const Region& self) { return self.hash(); });
  cls.def_prop_ro("labels", [](const Region& self) { return self.labels(); })
      .def("slice", [](const Region& self) { return self.slice(); })
      .def("as_shape", [](const Region& self) { return Shape{self}; })
      .def(
          "point_of_base_rank",
          [](const Region& self, nb::handle rank) {
            return value_or_raise(self.point_of_base_rank(to_unsigned(rank, "base rank")));
          },
          nb::arg("rank"))
      .def("__repr__", &Region::to_string)
      .def("__reduce__", [](nb::handle self) {
        const auto& region = nb::cast<const Region&>(self);
        return nb::make_tuple(self.type(), nb::make_tuple(region.labels(), region.slice()));
      });
}

void bind_shape(nb::module_& m) {
  nb::class_<Shape> cls(m, "Shape", kShapeDoc);
  cls.def(
      "__init__",
      [](Shape* self, nb::handle labels, nb::handle slice) {
        const auto& ranks = expect<Slice>(slice, "the slice of a Shape must be an NDSlice");
        new (self) Shape{value_or_raise(Region::create(to_labels(labels), ranks))};
      },
      nb::arg("labels"), nb::arg("slice"));
  def_equal_and_hash<Shape>(cls, [](const Shape& self) { return self.region.hash(); });
  cls.def_static("unity", [] { return Shape{}; })
      .def_prop_ro("labels", [](const Shape& self) { return self.region.labels(); })
      .def_prop_ro("ndslice", [](const Shape& self) { return self.region.slice(); })
      .def_prop_ro("region", [](const Shape& self) { return self.region; })
      .def_prop_ro("extent", [](const Shape& self) { return self.region.extent(); })
      .def(
          "at",
          [](const Shape& self, nb::handle label, nb::handle index) {
            return Shape{value_or_raise(self.region.at(to_label(label), to_unsigned(index, "index")))};
          },
          nb::arg("label"), nb::arg("index"))
      .def(
          "select",
          [](const Shape& self, nb::handle label, nb::handle range) {
            if (!PySlice_Check(range.ptr())) {
              raise(PyExc_TypeError, "select() takes a slice: shape.select('gpus', slice(0, 2))");
            }
            return Shape{value_or_raise(self.region.select(to_label(label), to_range(nb::borrow<nb::slice>(range))))};
          },
          nb::arg("label"), nb::arg("slice"))
      .def("index",
           [](const Shape& self, nb::kwargs coordinates) {
             Region region = self.region;
             for (auto [label, index] : coordinates) {
               region = value_or_raise(region.at(to_label(label), to_unsigned(index, "index")));
             }
             return Shape{std::move(region)};
           })
      // What the mesh methods of _mesh_trait.py stand on.
      .def("_slice", &shape_slice)
      .def("_split", &shape_split)
      .def("_flatten",
           [](const Shape& self, nb::handle label) {
             return Shape{value_or_raise(self.region.flatten(to_label(label)))};
           })
      .def("ranks", [](const Shape& self) { return self.region.ranks(); })
      .def("coordinates", &coordinates_dict, nb::arg("rank"))
      .def("__len__", [](const Shape& self) { return self.region.size(); })
      .def("__repr__", [](const Shape& self) { return "Shape " + self.region.fields_to_string(); })
      .def("__str__",
           [](const Shape& self) {
             std::string out = "{";
             for (size_t i = 0; i < self.region.labels().size(); ++i) {
               out += (i ? "," : "") + self.region.labels()[i] + "=" +
                      std::to_string(self.region.slice().sizes()[i]);
             }
             return out + "}";
           })
      .def("__reduce__", [](nb::handle self) {
        const auto& region = nb::cast<const Shape&>(self).region;
        return nb::make_tuple(self.type(), nb::make_tuple(region.labels(), region.slice()));
      });
}

}  // namespace

void bind_geometry(nb::module_& m) {
  bind_extent(m);
  bind_point(m);
  bind_slice(m);
  bind_region(m);
  bind_shape(m);
}

}  // namespace monarch
