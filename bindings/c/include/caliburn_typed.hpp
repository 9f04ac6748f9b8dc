// caliburn_typed.hpp: typed objects, in the layouts of the Rust interface (docs/format.md): pointers that are distances,
// vectors, strings and sorted maps in a heap, read as plain data and changed in transactions. A program in C++ and one
// in Rust can use the same store, one after the other.
//
//     struct Bank {                                      // in Rust: #[derive(Recoverable)] #[repr(C)]
//         caliburn::map<caliburn::string, std::int64_t> accounts;     // PBTreeMap<PString, i64>
//         caliburn::vector<std::uint64_t> history;                    // PVec<u64>
//     };
//     caliburn::objects<Bank> bank(heap);                // made by Objects::<Bank>::open(&store, "bank")
//     caliburn::transaction tx(heap);
//     caliburn::writer in(tx);
//     bank->accounts.insert(in, "ann", 5);
//     bank->history.push_back(in, 1);
//     tx.commit();
//
// Values stand where they are: a type that holds one of these is not copied out of a heap, and is moved within it by
// `relocate`, which tells pointers that they were moved. A struct of one's own that holds some says which, so that
// vectors and maps can move it:
//
//     template <> struct caliburn::moved<Bank> {
//         static void by(Bank &bank, std::ptrdiff_t by) { tell(bank.accounts, by); tell(bank.history, by); }
//     };
//
// References and iterators into a vector or a map are good until something is put into it or taken out of it, by
// whatever function; `for_each` and loops change nothing of what they go through. Lengths and capacities grow, what
// `allocate` gives is of zeros: an empty value of every type here, but not of each type of Rust: a `PBox` that is no
// `Option`, or an enum that begins with another number than 0, is to be filled before the commit. After an exception
// the transaction can only be aborted. Needs exceptions.
//
// One thread changes a heap's objects at a time, and nobody reads them meanwhile: in Rust that is enforced, here it is
// the program's duty, and so are owners: `free` what was taken out. Nothing here checks the types that the store
// records: compare `objects::types()` with what the Rust program says, or open it there first.
#ifndef CALIBURN_TYPED_HPP
#define CALIBURN_TYPED_HPP

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#if __cplusplus >= 201703L
#include <string_view>
#endif

#include "caliburn.hpp"

namespace caliburn {

// What a value is told when it was moved by so many bytes. Plain data need not be told.
template <class T>
struct moved {
    static_assert(detail::plain<T>::value, "say what of it is to be told when it is moved: caliburn::moved");
    static void by(T &, std::ptrdiff_t) {}
};

template <class T>
void tell(T &value, std::ptrdiff_t by) {
    moved<T>::by(value, by);
}

// Moves values to a place of their own, which is declared, or within one.
template <class T>
void relocate(T *from, T *to, std::size_t count) {
    if (count == 0) return;
    std::memmove(static_cast<void *>(to), static_cast<const void *>(from), count * sizeof(T));
    std::ptrdiff_t by = reinterpret_cast<char *>(to) - reinterpret_cast<char *>(from);
    for (std::size_t i = 0; i < count; ++i) tell(to[i], by);
}

// A transaction on the objects of a heap: declares, allocates, frees.
class writer {
public:
    // Of a heap's transaction.
    explicit writer(caliburn::transaction &tx) : heap_(tx.of_heap()), tx_(&tx) {}
    template <class T>
    void declare(T *at, std::size_t count = 1) {
        if (count > 0) whole(caliburn_set_range(tx_->raw(), at, count * sizeof(T)));
    }
    // Declares a value, and gives it to be changed.
    template <class T>
    T &change(T &value) {
        declare(&value);
        return value;
    }
    // Memory for so many values, neither declared nor of any content.
    template <class T>
    T *room(std::size_t count) {
        std::uint64_t place = CALIBURN_NOWHERE;
        if (count > SIZE_MAX / sizeof(T)) {
            tx_->fail();
            throw std::bad_alloc();
        }
        whole(caliburn_heap_alloc_aligned(tx_->raw(), count * sizeof(T), alignof(T) < 16 ? 16 : alignof(T), &place));
        return static_cast<T *>(caliburn_heap_at(heap_, place));
    }
    // Memory for so many values, declared, of zeros.
    template <class T>
    T *allocate(std::size_t count = 1) {
        T *at = room<T>(count);
        declare(at, count);
        std::memset(static_cast<void *>(at), 0, count * sizeof(T));
        return at;
    }
    template <class T>
    void free(T *at) {
        whole(caliburn_heap_free(tx_->raw(), caliburn_heap_place(heap_, at)));
    }
    std::uint64_t place(const void *at) const { return caliburn_heap_place(heap_, at); }

private:
    void whole(int code) {
        if (code == CALIBURN_OK) return;
        tx_->fail();
        throw error(code);
    }
    caliburn_heap *heap_;
    caliburn::transaction *tx_;
};

// A pointer in a heap to an object of the same heap: the distance from where it stands. `PBox<T>` of Rust, and
// `Option<PBox<T>>`.
template <class T>
class ptr {
public:
    ptr() noexcept = default;
    ptr(const ptr &) = delete;
    ptr &operator=(const ptr &) = delete;
    T *get() const noexcept {
        char *here = reinterpret_cast<char *>(const_cast<ptr *>(this));
        return distance_ == 0 ? nullptr : reinterpret_cast<T *>(here + distance_);
    }
    T *operator->() const noexcept { return get(); }
    T &operator*() const noexcept { return *get(); }
    explicit operator bool() const noexcept { return distance_ != 0; }
    // It cannot lead to where it stands itself, which is what a distance of 0 would say.
    void set(writer &in, T *to) {
        if (static_cast<const void *>(to) == this) throw std::invalid_argument("a pointer to where it stands itself");
        in.declare(this);
        point(to);
    }
    // The same where the pointer was declared already.
    void point(T *to) noexcept {
        distance_ = to ? reinterpret_cast<char *>(to) - reinterpret_cast<char *>(this) : 0;
    }
    // Makes an object of zeros that the pointer owns, declared, to be filled. What it led to before is not freed.
    T &make(writer &in) {
        T *made = in.allocate<T>();
        set(in, made);
        return *made;
    }
    // Frees the object, which owns nothing any more.
    void free(writer &in) {
        if (distance_ == 0) return;
        T *object = get();
        set(in, nullptr);
        in.free(object);
    }

private:
    friend struct moved<ptr<T>>;
    std::int64_t distance_ = 0;
};

template <class T>
struct moved<ptr<T>> {
    static void by(ptr<T> &pointer, std::ptrdiff_t by) noexcept {
        if (pointer.distance_ != 0) pointer.distance_ -= by;
    }
};

// `PVec<T>`.
template <class T>
class vector {
public:
    vector() noexcept = default;
    vector(const vector &) = delete;
    vector &operator=(const vector &) = delete;
    std::size_t size() const noexcept { return static_cast<std::size_t>(len_); }
    std::size_t capacity() const noexcept { return static_cast<std::size_t>(capacity_); }
    bool empty() const noexcept { return len_ == 0; }
    const T *data() const noexcept { return items_.get(); }
    const T *begin() const noexcept { return data(); }
    const T *end() const noexcept { return empty() ? begin() : begin() + size(); }
    const T &operator[](std::size_t index) const noexcept { return data()[index]; }
    const T &at(std::size_t index) const {
        if (index >= size()) throw std::out_of_range("outside of the vector");
        return data()[index];
    }
    // A value, declared, to be changed.
    T &change(writer &in, std::size_t index) {
        if (index >= size()) throw std::out_of_range("outside of the vector");
        return in.change(items_.get()[index]);
    }
    void reserve(writer &in, std::size_t wanted) {
        if (wanted <= capacity()) return;
        T *grown = in.room<T>(wanted), *before = items_.get();
        in.declare(this);
        in.declare(grown, size());
        relocate(before, grown, size());
        items_.point(grown);
        capacity_ = wanted;
        if (before) in.free(before);
    }
    // A value of zeros at the end, declared, to be filled.
    T &emplace_back(writer &in) {
        if (size() == capacity()) reserve(in, std::max<std::size_t>(4, capacity() + capacity()));
        T *end = items_.get() + size();
        in.declare(end);
        in.declare(&len_);
        std::memset(static_cast<void *>(end), 0, sizeof(T));
        ++len_;
        return *end;
    }
    template <class U = T>
    typename std::enable_if<detail::plain<U>::value>::type push_back(writer &in, const U &value) {
        // It may be one of those that are moved.
        U copy = value;
        emplace_back(in) = copy;
    }
    // Copies of values that are not in a heap, at the end.
    template <class U = T>
    typename std::enable_if<detail::plain<U>::value>::type append(writer &in, const U *values, std::size_t count) {
        if (count == 0) return;
        if (count > capacity() - size()) reserve(in, std::max(size() + count, capacity() + capacity()));
        T *end = items_.get() + size();
        in.declare(end, count);
        in.declare(&len_);
        std::memcpy(static_cast<void *>(end), values, count * sizeof(T));
        len_ += count;
    }
    // Each has what the other had; nothing moves.
    void swap(writer &in, vector &other) {
        in.declare(this);
        in.declare(&other);
        T *before = items_.get();
        items_.point(other.items_.get());
        other.items_.point(before);
        std::swap(len_, other.len_);
        std::swap(capacity_, other.capacity_);
    }
    // Shortens it: what is cut off owns nothing any more.
    void truncate(writer &in, std::size_t len) {
        if (len < size()) in.change(len_) = len;
    }
    void pop_back(writer &in) { truncate(in, size() - (empty() ? 0 : 1)); }
    // Frees its memory: the values own nothing any more.
    void clear(writer &in) {
        in.declare(this);
        T *before = items_.get();
        items_.point(nullptr);
        len_ = capacity_ = 0;
        if (before) in.free(before);
    }

private:
    friend struct moved<vector<T>>;
    ptr<T> items_;
    std::uint64_t len_ = 0;
    std::uint64_t capacity_ = 0;
};

template <class T>
struct moved<vector<T>> {
    static void by(vector<T> &values, std::ptrdiff_t by) noexcept { tell(values.items_, by); }
};

// `PString`: text in UTF-8, which is the caller's duty.
class string {
public:
    std::size_t size() const noexcept { return bytes_.size(); }
    bool empty() const noexcept { return bytes_.empty(); }
    // Without a zero behind it.
    const char *data() const noexcept { return bytes_.data(); }
    std::string str() const { return empty() ? std::string() : std::string(data(), size()); }
    void assign(writer &in, const std::string &text) {
        bytes_.truncate(in, 0);
        append(in, text);
    }
    void append(writer &in, const std::string &text) { bytes_.append(in, text.data(), text.size()); }
    void clear(writer &in) { bytes_.clear(in); }
    void swap(writer &in, string &other) { bytes_.swap(in, other.bytes_); }
#if __cplusplus >= 201703L
    std::string_view view() const noexcept { return empty() ? std::string_view() : std::string_view(data(), size()); }
#endif
    int compare(const char *text, std::size_t len) const noexcept {
        std::size_t both = std::min(size(), len);
        int order = both == 0 ? 0 : std::memcmp(data(), text, both);
        return order != 0 ? order : (size() < len ? -1 : size() > len);
    }

private:
    friend struct moved<string>;
    vector<char> bytes_;
};

template <>
struct moved<string> {
    static void by(string &text, std::ptrdiff_t by) noexcept { tell(text.bytes_, by); }
};

inline bool operator==(const string &text, const std::string &other) {
    return text.compare(other.data(), other.size()) == 0;
}
inline bool operator!=(const string &text, const std::string &other) { return !(text == other); }
inline bool operator==(const string &text, const string &other) {
    return text.compare(other.data(), other.size()) == 0;
}
inline bool operator!=(const string &text, const string &other) { return !(text == other); }

// How keys of a map are looked up, made, and freed: integers by their value, strings by a std::string.
template <class K>
struct key {
    static_assert(std::is_integral<K>::value, "keys are integers or caliburn::string; others say so: caliburn::key");
    using lent = K;
    static int order(const K &there, const K &wanted) { return there < wanted ? -1 : wanted < there; }
    static void fill(writer &, K &place, const K &from) { place = from; }
    static void free(writer &, K &) {}
};

template <>
struct key<string> {
    using lent = std::string;
    static int order(const string &there, const std::string &wanted) {
        return there.compare(wanted.data(), wanted.size());
    }
    static void fill(writer &in, string &place, const std::string &from) { place.assign(in, from); }
    static void free(writer &in, string &text) { text.clear(in); }
};

// `PBTreeMap<K, V>`: a B-tree whose nodes have five to eleven entries.
template <class K, class V>
class map {
    static constexpr std::size_t MOST = 11;
    static constexpr std::size_t FEWEST = MOST / 2;
    // Where a value may be.
    template <class T>
    struct slot {
        alignas(T) unsigned char bytes[sizeof(T)];
    };
    struct node {
        std::uint64_t len;
        slot<K> keys[MOST];
        slot<V> values[MOST];
        K &key(std::size_t index) noexcept { return reinterpret_cast<K &>(keys[index]); }
        V &value(std::size_t index) noexcept { return reinterpret_cast<V &>(values[index]); }
    };
    struct inner {
        node leaf;
        ptr<node> children[MOST + 1];
    };
    static ptr<node> &child(node *at, std::size_t index) noexcept {
        return reinterpret_cast<inner *>(at)->children[index];
    }

public:
    using lent = typename caliburn::key<K>::lent;
    map() noexcept = default;
    map(const map &) = delete;
    map &operator=(const map &) = delete;
    std::size_t size() const noexcept { return static_cast<std::size_t>(len_); }
    bool empty() const noexcept { return len_ == 0; }
    // The value of a key; null if there is none.
    const V *find(const lent &key) const { return const_cast<map *>(this)->seek(key); }
    // The same, declared, to be changed.
    V *change(writer &in, const lent &key) {
        V *found = seek(key);
        if (found) in.declare(found);
        return found;
    }
    // The value of a key, declared, to be filled: one of zeros if there was none.
    V &at(writer &in, const lent &key) {
        held wanted = key;
        V *found = change(in, wanted);
        return found ? *found : *add(in, wanted);
    }
    template <class U = V>
    typename std::enable_if<detail::plain<U>::value>::type insert(writer &in, const lent &key, const U &value) {
        U copy = value;
        at(in, key) = copy;
    }
    // Takes an entry out, whose value owns nothing any more. Whether there was one.
    bool erase(writer &in, const lent &key) {
        held wanted = key;
        if (!seek(wanted)) return false;
        in.declare(this);
        take(in, root_.get(), height_, &wanted, nullptr, nullptr);
        --len_;
        node *before = root_.get();
        if (before->len == 0) {
            root_.point(height_ > 0 ? child(before, 0).get() : nullptr);
            if (height_ > 0) --height_;
            in.free(before);
        }
        return true;
    }
    // Takes everything out; the values own nothing any more.
    void clear(writer &in) {
        in.declare(this);
        if (root_) drop(in, root_.get(), height_);
        root_.point(nullptr);
        len_ = 0;
        height_ = 0;
    }
    // Each has what the other had; nothing moves.
    void swap(writer &in, map &other) {
        in.declare(this);
        in.declare(&other);
        node *before = root_.get();
        root_.point(other.root_.get());
        other.root_.point(before);
        std::swap(len_, other.len_);
        std::swap(height_, other.height_);
    }
    // Calls with each key and value, in order.
    template <class F>
    void for_each(F call) const {
        for (auto each : *this) call(each.first, each.second);
    }

    // An entry, as iterators show it.
    struct entry {
        const K &first;
        const V &second;
    };
    // Goes through the entries in the order of their keys.
    class const_iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = entry;
        using difference_type = std::ptrdiff_t;
        using pointer = void;
        using reference = entry;
        const_iterator() noexcept = default;
        entry operator*() const noexcept {
            const place &here = path_[depth_ - 1];
            return entry{here.at->key(here.index), here.at->value(here.index)};
        }
        const_iterator &operator++() noexcept {
            place &here = path_[depth_ - 1];
            ++here.index;
            // From an inner node's entry down to the first behind it.
            if (height_ >= depth_) first(child(here.at, here.index).get());
            ascend();
            return *this;
        }
        const_iterator operator++(int) noexcept {
            const_iterator before = *this;
            ++*this;
            return before;
        }
        friend bool operator==(const const_iterator &one, const const_iterator &other) noexcept {
            if (one.depth_ == 0 || other.depth_ == 0) return one.depth_ == other.depth_;
            const place &a = one.path_[one.depth_ - 1], &b = other.path_[other.depth_ - 1];
            return a.at == b.at && a.index == b.index;
        }
        friend bool operator!=(const const_iterator &one, const const_iterator &other) noexcept { return !(one == other); }

    private:
        friend class map;
        struct place {
            node *at;
            std::size_t index;
        };
        void push(node *at, std::size_t index) noexcept {
            path_[depth_].at = at;
            path_[depth_].index = index;
            ++depth_;
        }
        // To the first entry below a node.
        void first(node *at) noexcept {
            push(at, 0);
            while (height_ >= depth_) push(child(path_[depth_ - 1].at, 0).get(), 0);
        }
        // Out of nodes that have no more entries.
        void ascend() noexcept {
            while (depth_ > 0 && path_[depth_ - 1].index >= path_[depth_ - 1].at->len) --depth_;
        }
        // More than any map is high: a node has six children.
        place path_[25];
        std::uint32_t depth_ = 0;
        std::uint32_t height_ = 0;
    };
    const_iterator begin() const noexcept {
        const_iterator at;
        at.height_ = height_;
        if (root_) at.first(root_.get());
        at.ascend();
        return at;
    }
    const_iterator end() const noexcept { return const_iterator(); }
    // The first entry whose key is not less than this.
    const_iterator lower_bound(const lent &wanted) const {
        const_iterator found;
        found.height_ = height_;
        bool here = false;
        for (node *at = root_.get(); at && !here;) {
            std::size_t index;
            here = search(at, wanted, index);
            found.push(at, index);
            at = found.height_ >= found.depth_ ? child(at, index).get() : nullptr;
        }
        found.ascend();
        return found;
    }

private:
    // What is wanted may be in the map itself, whose entries move.
    using held = typename std::conditional<std::is_trivially_copyable<lent>::value, const lent, const lent &>::type;
    friend struct moved<map<K, V>>;
    static bool search(node *at, const lent &wanted, std::size_t &index) {
        for (index = 0; index < at->len; ++index) {
            int order = caliburn::key<K>::order(at->key(index), wanted);
            if (order >= 0) return order == 0;
        }
        return false;
    }
    V *seek(const lent &wanted) {
        node *at = root_.get();
        for (std::uint32_t height = height_; at; --height) {
            std::size_t index;
            if (search(at, wanted, index)) return &at->value(index);
            if (height == 0) return nullptr;
            at = child(at, index).get();
        }
        return nullptr;
    }
    static void drop(writer &in, node *at, std::uint32_t height) {
        for (std::size_t i = 0; height > 0 && i <= at->len; ++i) drop(in, child(at, i).get(), height - 1);
        declare(in, at, height);
        for (std::size_t i = 0; i < at->len; ++i) caliburn::key<K>::free(in, at->key(i));
        in.free(at);
    }
    static node *make(writer &in, std::uint32_t height) {
        return height == 0 ? in.allocate<node>() : &in.allocate<inner>()->leaf;
    }
    static void declare(writer &in, node *at, std::uint32_t height) {
        if (height == 0) {
            in.declare(at);
        } else {
            in.declare(reinterpret_cast<inner *>(at));
        }
    }
    // Moves entries, and the links in front of them or behind them, between places that are declared.
    static void move(node *from, std::size_t at, std::size_t count, node *to, std::size_t where) {
        relocate(&from->key(at), &to->key(where), count);
        relocate(&from->value(at), &to->value(where), count);
    }
    static void move_links(std::uint32_t height, node *from, std::size_t at, std::size_t count, node *to, std::size_t where) {
        if (height > 0) relocate(&child(from, at), &child(to, where), count);
    }
    // Splits a full child in two; its middle entry comes up. All is declared first.
    static void split(writer &in, node *parent, std::uint32_t height, std::size_t index) {
        node *left = child(parent, index).get();
        node *right = make(in, height - 1);
        declare(in, parent, height);
        declare(in, left, height - 1);
        move(left, FEWEST + 1, MOST - FEWEST - 1, right, 0);
        move_links(height - 1, left, FEWEST + 1, MOST - FEWEST, right, 0);
        right->len = MOST - FEWEST - 1;
        move(parent, index, parent->len - index, parent, index + 1);
        move_links(height, parent, index + 1, parent->len - index, parent, index + 2);
        move(left, FEWEST, 1, parent, index);
        child(parent, index + 1).point(right);
        left->len = FEWEST;
        ++parent->len;
    }
    // Puts a key in that is not there, with a value of zeros.
    V *add(writer &in, const lent &wanted) {
        in.declare(this);
        if (!root_) root_.point(make(in, 0));
        if (root_->len == MOST) {
            node *top = make(in, height_ + 1);
            child(top, 0).point(root_.get());
            root_.point(top);
            ++height_;
            split(in, top, height_, 0);
        }
        node *at = root_.get();
        std::size_t index;
        for (std::uint32_t height = height_; height > 0; --height) {
            search(at, wanted, index);
            if (child(at, index)->len == MOST) {
                split(in, at, height, index);
                if (caliburn::key<K>::order(at->key(index), wanted) < 0) ++index;
            }
            at = child(at, index).get();
        }
        search(at, wanted, index);
        declare(in, at, 0);
        // The key is made where nobody looks yet, since it may find no room; then it goes in front of those behind it.
        std::size_t end = static_cast<std::size_t>(at->len);
        std::memset(static_cast<void *>(&at->key(end)), 0, sizeof(K));
        caliburn::key<K>::fill(in, at->key(end), wanted);
        slot<K> aside;
        relocate(&at->key(end), reinterpret_cast<K *>(&aside), 1);
        move(at, index, end - index, at, index + 1);
        relocate(reinterpret_cast<K *>(&aside), &at->key(index), 1);
        std::memset(static_cast<void *>(&at->value(index)), 0, sizeof(V));
        ++at->len;
        ++len_;
        return &at->value(index);
    }
    // Sees to it that a child has an entry more than the fewest, so that one can go: borrowed from a neighbour, or by
    // joining two. The index of the child then.
    static std::size_t fill(writer &in, node *parent, std::uint32_t height, std::size_t index) {
        node *at = child(parent, index).get();
        if (at->len > FEWEST) return index;
        node *left = index > 0 ? child(parent, index - 1).get() : nullptr;
        node *right = index < parent->len ? child(parent, index + 1).get() : nullptr;
        declare(in, parent, height);
        declare(in, at, height - 1);
        if (left && left->len > FEWEST) {
            declare(in, left, height - 1);
            move(at, 0, at->len, at, 1);
            move_links(height - 1, at, 0, at->len + 1, at, 1);
            move(parent, index - 1, 1, at, 0);
            move(left, left->len - 1, 1, parent, index - 1);
            move_links(height - 1, left, left->len, 1, at, 0);
            --left->len;
            ++at->len;
            return index;
        }
        if (right && right->len > FEWEST) {
            declare(in, right, height - 1);
            move(parent, index, 1, at, at->len);
            move(right, 0, 1, parent, index);
            move_links(height - 1, right, 0, 1, at, at->len + 1);
            move(right, 1, right->len - 1, right, 0);
            move_links(height - 1, right, 1, right->len, right, 0);
            --right->len;
            ++at->len;
            return index;
        }
        std::size_t first = left ? index - 1 : index;
        node *one = child(parent, first).get(), *other = child(parent, first + 1).get();
        declare(in, one, height - 1);
        move(parent, first, 1, one, one->len);
        move(other, 0, other->len, one, one->len + 1);
        move_links(height - 1, other, 0, other->len + 1, one, one->len + 1);
        one->len += 1 + other->len;
        move(parent, first + 1, parent->len - first - 1, parent, first);
        move_links(height, parent, first + 2, parent->len - first - 1, parent, first + 1);
        --parent->len;
        in.free(other);
        return first;
    }
    // Takes an entry out below a node that can spare one: that of a key, which is freed, or, without one, the last,
    // which is moved to where `key_to` and `value_to` are.
    static void take(writer &in, node *at, std::uint32_t height, const lent *wanted, K *key_to, V *value_to) {
        std::size_t index = at->len;
        bool here = wanted ? search(at, *wanted, index) : height == 0;
        if (!wanted && height == 0) --index;
        if (height == 0 && index >= at->len) throw std::logic_error("keys of the map have no order");
        if (height == 0) {
            declare(in, at, 0);
            if (wanted) {
                caliburn::key<K>::free(in, at->key(index));
            } else {
                relocate(&at->key(index), key_to, 1);
                relocate(&at->value(index), value_to, 1);
            }
            move(at, index + 1, at->len - index - 1, at, index);
            --at->len;
            return;
        }
        if (!here) {
            // Filling up may have joined the child with its neighbour, and moved the entry looked for below.
            std::size_t below = fill(in, at, height, index);
            return take(in, child(at, below).get(), height - 1, wanted, key_to, value_to);
        }
        // The entry before takes its place, if the child in front can spare one.
        node *before = child(at, index).get();
        if (before->len > FEWEST) {
            declare(in, at, height);
            caliburn::key<K>::free(in, at->key(index));
            return take(in, before, height - 1, nullptr, &at->key(index), &at->value(index));
        }
        // Else the entry goes down, by filling that child up or by joining it with the next.
        fill(in, at, height, index);
        return take(in, at, height, wanted, key_to, value_to);
    }

    ptr<node> root_;
    std::uint64_t len_ = 0;
    std::uint32_t height_ = 0;
    std::uint32_t reserved_ = 0;
};

template <class K, class V>
struct moved<map<K, V>> {
    static void by(map<K, V> &entries, std::ptrdiff_t by) noexcept { tell(entries.root_, by); }
};

// The objects of a heap, reached from a root of type R.
template <class R>
class objects {
public:
    // Those that are there: made in Rust by `Objects::<R>::open`, or by `create`.
    explicit objects(const caliburn::heap &heap) : heap_(heap.raw()) {
        std::uint64_t place = CALIBURN_NOWHERE;
        check(caliburn_heap_root(heap_, "caliburn.root", &place));
        if (has("caliburn.import")) throw error(CALIBURN_INVALID, "an import of the objects was cut short: do it again");
        std::uint64_t at = (place + 16 + alignof(R) - 1) / alignof(R) * alignof(R);
        if (caliburn_heap_usable_len(heap_, place) < at - place + sizeof(R))
            throw error(CALIBURN_INVALID, "the root is smaller than that type: it was made as one of another");
        root_ = reinterpret_cast<R *>(caliburn_heap_at(heap_, at));
    }
    // Makes a root of zeros, and records its types: the text that Rust records for the same (`Objects::types`), which
    // compares it when it opens them.
    static objects create(const caliburn::heap &heap, const std::string &types) {
        struct anchor {
            std::uint64_t hash_keys[2];
            R root;
        };
        caliburn_heap *raw = heap.raw();
        std::uint64_t there = CALIBURN_NOWHERE;
        if (caliburn_heap_root(raw, "caliburn.root", &there) != CALIBURN_NOT_FOUND)
            throw error(CALIBURN_EXISTS, "the heap has objects already");
        transaction tx(heap);
        writer in(tx);
        anchor *made = in.template allocate<anchor>();
        std::random_device random;
        for (std::uint64_t &word : made->hash_keys) word = static_cast<std::uint64_t>(random()) << 32 | random();
        char *record = in.template allocate<char>(8 + types.size());
        std::uint64_t len = types.size();
        std::memcpy(record, &len, 8);
        std::memcpy(record + 8, types.data(), types.size());
        check(caliburn_heap_set_root(tx.raw(), "caliburn.root", in.place(made)));
        check(caliburn_heap_set_root(tx.raw(), "caliburn.types", in.place(record)));
        tx.commit();
        return objects(heap);
    }
    // The types as they are recorded.
    std::string types() const {
        std::uint64_t place = CALIBURN_NOWHERE, len = 0;
        check(caliburn_heap_root(heap_, "caliburn.types", &place));
        const char *record = static_cast<const char *>(caliburn_heap_at(heap_, place));
        std::uint64_t usable = caliburn_heap_usable_len(heap_, place);
        if (record && usable >= 8) std::memcpy(&len, record, 8);
        if (!record || usable < 8 || len > usable - 8) throw std::out_of_range("the record of types is damaged");
        return std::string(record + 8, static_cast<std::size_t>(len));
    }
    R *operator->() const noexcept { return root_; }
    R &operator*() const noexcept { return *root_; }

private:
    bool has(const char *root) const {
        std::uint64_t place = CALIBURN_NOWHERE;
        return caliburn_heap_root(heap_, root, &place) == CALIBURN_OK;
    }
    caliburn_heap *heap_;
    R *root_;
};

}  // namespace caliburn
#endif
