// caliburn.hpp: what is in caliburn.h, for C++11 and later: handles that give themselves back, transactions that abort
// when their scope is left without a commit, typed objects and roots. Errors are exceptions of type caliburn::error.
//
//     caliburn::store store("accounts", caliburn::options().set(CALIBURN_CREATE, 1));
//     caliburn::heap heap(store, "objects");
//     caliburn::transaction tx(heap);
//     auto account = tx.make<Account>();
//     account->balance = 100;
//     tx.root("account", account);
//     tx.commit(CALIBURN_POWER);
//
// The conventions of caliburn.h hold. Objects move only; what is moved from is empty.
#ifndef CALIBURN_HPP
#define CALIBURN_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "caliburn.h"

namespace caliburn {

// What a function of caliburn.h came back with.
class error : public std::runtime_error {
public:
    explicit error(int code) : std::runtime_error(caliburn_message()), code_(code) {}
    error(int code, const char *text) : std::runtime_error(text), code_(code) {}
    int code() const noexcept { return code_; }

private:
    int code_;
};

inline void check(int code) {
    if (code != CALIBURN_OK) throw error(code);
}

namespace detail {
// Whether values of a type can be copied byte by byte. (That they cannot be copied at all counts as trivial.)
template <class T>
struct plain : std::integral_constant<bool, std::is_trivially_copyable<T>::value && std::is_copy_constructible<T>::value> {};

// A handle and the function that gives it back. Whatever that says is lost: close() and the like report it.
template <class T, class Free>
class handle {
public:
    handle() noexcept = default;
    explicit handle(T *raw) noexcept : raw_(raw) {}
    handle(handle &&other) noexcept : raw_(other.take()) {}
    handle &operator=(handle &&other) noexcept {
        if (this != &other) {
            reset();
            raw_ = other.take();
        }
        return *this;
    }
    handle(const handle &) = delete;
    handle &operator=(const handle &) = delete;
    ~handle() { reset(); }
    T *get() const noexcept { return raw_; }
    T *take() noexcept {
        T *raw = raw_;
        raw_ = nullptr;
        return raw;
    }

private:
    void reset() noexcept {
        if (raw_) Free()(take());
    }
    T *raw_ = nullptr;
};
}  // namespace detail

// How a store is created and opened: caliburn_options_set() for each.
class options {
public:
    options() : handle_(caliburn_options_new()) {}
    options &set(int option, std::uint64_t value) & {
        check(caliburn_options_set(handle_.get(), option, value));
        return *this;
    }
    options &&set(int option, std::uint64_t value) && {
        set(option, value);
        return std::move(*this);
    }
    options &log_path(const std::string &path) & {
        check(caliburn_options_set_log_path(handle_.get(), path.c_str()));
        return *this;
    }
    // A second file or block device for the log.
    options &duplex_log(const std::string &path) & {
        check(caliburn_options_set_duplex_log(handle_.get(), path.c_str()));
        return *this;
    }
    // What the store may name outside of its directory; can be called several times.
    options &outside(const std::string &path) & {
        check(caliburn_options_add_outside(handle_.get(), path.c_str()));
        return *this;
    }
    // Told how far opening or checking is: what is done (CALIBURN_READ_LOG, CALIBURN_VERIFY_SEGMENTS), bytes of it
    // that were read, and how many there are at most. False ends it. It must not throw.
    options &progress(std::function<bool(int, std::uint64_t, std::uint64_t)> told) & {
        told_.reset(new std::function<bool(int, std::uint64_t, std::uint64_t)>(std::move(told)));
        auto tell = [](void *context, int phase, std::uint64_t done, std::uint64_t total) noexcept -> int {
            auto &call = *static_cast<std::function<bool(int, std::uint64_t, std::uint64_t)> *>(context);
            return call(phase, done, total) ? 0 : 1;
        };
        check(caliburn_options_set_progress(handle_.get(), tell, told_.get()));
        return *this;
    }
    caliburn_options *raw() const noexcept { return handle_.get(); }

private:
    struct free {
        void operator()(caliburn_options *raw) const noexcept { caliburn_options_free(raw); }
    };
    std::unique_ptr<std::function<bool(int, std::uint64_t, std::uint64_t)>> told_;
    detail::handle<caliburn_options, free> handle_;
};

// A mapped region; unmapped at the end of its life.
class region {
public:
    region() noexcept = default;
    explicit region(caliburn_region *raw) noexcept : handle_(raw) {}
    void *data() const noexcept { return caliburn_region_address(handle_.get()); }
    std::size_t size() const noexcept { return caliburn_region_len(handle_.get()); }
    // An object at an offset, which the program has put there; the region is large enough for it.
    template <class T>
    T *at(std::size_t offset) const {
        static_assert(std::is_trivially_copyable<T>::value, "recoverable memory holds plain data");
        if (offset > size() || sizeof(T) > size() - offset) throw std::out_of_range("outside of the region");
        return reinterpret_cast<T *>(static_cast<char *>(data()) + offset);
    }
    void grow(std::size_t len) { check(caliburn_region_grow(handle_.get(), len)); }
    void unmap() {
        check(caliburn_unmap(handle_.get()));
        handle_.take();
    }
    caliburn_region *raw() const noexcept { return handle_.get(); }

private:
    struct free {
        void operator()(caliburn_region *raw) const noexcept { caliburn_unmap(raw); }
    };
    detail::handle<caliburn_region, free> handle_;
};

// A segment of an open store.
class segment {
public:
    explicit segment(caliburn_segment *raw) noexcept : handle_(raw) {}
    std::uint64_t size() const noexcept { return caliburn_segment_len(handle_.get()); }
    std::string name() const {
        std::string name(caliburn_segment_name(handle_.get(), nullptr, 0), '\0');
        caliburn_segment_name(handle_.get(), &name[0], name.size() + 1);
        return name;
    }
    void grow(std::uint64_t len) { check(caliburn_segment_grow(handle_.get(), len)); }
    // len 0 is the rest of the segment.
    caliburn::region map(std::uint64_t offset = 0, std::uint64_t len = 0) const {
        caliburn_region *raw = nullptr;
        check(caliburn_map(handle_.get(), offset, len, &raw));
        return caliburn::region(raw);
    }
    caliburn::region load() const {
        caliburn_region *raw = nullptr;
        check(caliburn_load(handle_.get(), &raw));
        return caliburn::region(raw);
    }
    caliburn_segment *raw() const noexcept { return handle_.get(); }

private:
    struct free {
        void operator()(caliburn_segment *raw) const noexcept { caliburn_segment_release(raw); }
    };
    detail::handle<caliburn_segment, free> handle_;
};

// An open store; closed at the end of its life, which heaps and transactions must not outlive.
class store {
public:
    explicit store(const std::string &path, const caliburn::options &options = caliburn::options()) {
        caliburn_store *raw = nullptr;
        check(caliburn_open(path.c_str(), options.raw(), &raw));
        handle_ = detail::handle<caliburn_store, free>(raw);
    }
    caliburn::segment segment(const std::string &name) const {
        caliburn_segment *raw = nullptr;
        check(caliburn_segment_open(handle_.get(), name.c_str(), &raw));
        return caliburn::segment(raw);
    }
    caliburn::segment segment(const std::string &name, std::uint64_t len) const {
        caliburn_segment *raw = nullptr;
        check(caliburn_segment_open_or_create(handle_.get(), name.c_str(), len, &raw));
        return caliburn::segment(raw);
    }
    // Decide what transaction::prepare() left undecided.
    void commit_prepared(const std::string &global_id) {
        check(caliburn_commit_prepared(handle_.get(), global_id.data(), global_id.size()));
    }
    void abort_prepared(const std::string &global_id) {
        check(caliburn_abort_prepared(handle_.get(), global_id.data(), global_id.size()));
    }
    void flush() { check(caliburn_flush(handle_.get())); }
    void truncate() { check(caliburn_truncate(handle_.get())); }
    void close() {
        int code = caliburn_close(handle_.get());
        if (code != CALIBURN_BUSY) handle_.take();
        check(code);
    }
    caliburn_query query() const {
        caliburn_query found;
        check(caliburn_query_store(handle_.get(), &found, sizeof found));
        return found;
    }
    caliburn_statistics statistics() const {
        caliburn_statistics found;
        check(caliburn_statistics_get(handle_.get(), &found, sizeof found));
        return found;
    }
    caliburn_store *raw() const noexcept { return handle_.get(); }

private:
    struct free {
        void operator()(caliburn_store *raw) const noexcept { caliburn_close(raw); }
    };
    detail::handle<caliburn_store, free> handle_;
};

class heap;

// An object of a heap: its place, which stays valid across crashes, and its address, which does until the heap is closed.
template <class T>
class object {
    static_assert(std::is_trivially_copyable<T>::value, "recoverable memory holds plain data");

public:
    object() noexcept = default;
    object(std::uint64_t place, T *address) noexcept : place_(place), address_(address) {}
    std::uint64_t place() const noexcept { return place_; }
    T *get() const noexcept { return address_; }
    T *operator->() const noexcept { return address_; }
    T &operator*() const noexcept { return *address_; }
    explicit operator bool() const noexcept { return address_ != nullptr; }

private:
    std::uint64_t place_ = CALIBURN_NOWHERE;
    T *address_ = nullptr;
};

// A heap of an open store; closed at the end of its life.
class heap {
public:
    heap(const caliburn::store &store, const std::string &name) {
        caliburn_heap *raw = nullptr;
        check(caliburn_heap_open(store.raw(), name.c_str(), &raw));
        handle_ = detail::handle<caliburn_heap, free>(raw);
    }
    // The object of that name, which was made as one of that type; an empty one if there is none.
    template <class T>
    object<T> root(const std::string &name) const {
        std::uint64_t place = CALIBURN_NOWHERE;
        int code = caliburn_heap_root(handle_.get(), name.c_str(), &place);
        if (code == CALIBURN_NOT_FOUND) return object<T>();
        check(code);
        return at<T>(place);
    }
    // The object at a place, which was made as one of that type.
    template <class T>
    object<T> at(std::uint64_t place) const {
        if (caliburn_heap_usable_len(handle_.get(), place) < sizeof(T)) throw std::out_of_range("no such object");
        return object<T>(place, static_cast<T *>(caliburn_heap_at(handle_.get(), place)));
    }
    void check_all() const { check(caliburn_heap_check(handle_.get())); }
    // Decide what transaction::prepare() of this heap left undecided.
    void commit_prepared(const std::string &global_id) {
        check(caliburn_heap_commit_prepared(handle_.get(), global_id.data(), global_id.size()));
    }
    void abort_prepared(const std::string &global_id) {
        check(caliburn_heap_abort_prepared(handle_.get(), global_id.data(), global_id.size()));
    }
    caliburn_heap *raw() const noexcept { return handle_.get(); }

private:
    struct free {
        void operator()(caliburn_heap *raw) const noexcept { caliburn_heap_close(raw); }
    };
    detail::handle<caliburn_heap, free> handle_;
};

// A transaction's scope: left without commit(), also by an exception, it is aborted.
class transaction {
public:
    explicit transaction(const caliburn::store &store, int mode = CALIBURN_RESTORE) {
        check(caliburn_begin(store.raw(), mode, &tx_));
        open_ = true;
    }
    explicit transaction(const caliburn::heap &heap) : heap_(heap.raw()) {
        check(caliburn_heap_begin(heap_, &tx_));
        open_ = true;
    }
    // Others know where it is.
    transaction(const transaction &) = delete;
    transaction &operator=(const transaction &) = delete;
    ~transaction() {
        if (open_) caliburn_abort(&tx_);
    }
    // Declares an object, and gives it to be changed.
    template <class T>
    T &change(T *object) {
        declare(object, sizeof *object);
        return *object;
    }
    template <class T>
    T &change(const caliburn::object<T> &object) {
        return change(object.get());
    }
    void declare(const void *address, std::size_t len) { check(caliburn_set_range(&tx_, address, len)); }
    template <class T>
    void store(T *target, const T &value) {
        static_assert(detail::plain<T>::value, "it is no plain data: a copy of it elsewhere would not be the same");
        check(caliburn_write(&tx_, target, &value, sizeof value));
    }
    // An object that the transaction has made and declared, zeroed.
    template <class T>
    object<T> make() {
        std::uint64_t place = CALIBURN_NOWHERE;
        check(caliburn_heap_alloc_aligned(&tx_, sizeof(T), alignof(T) < 16 ? 16 : alignof(T), &place));
        T *address = static_cast<T *>(caliburn_heap_at(heap_, place));
        declare(address, sizeof(T));
        std::memset(static_cast<void *>(address), 0, sizeof(T));
        return object<T>(place, address);
    }
    template <class T>
    void free(const object<T> &object) {
        check(caliburn_heap_free(&tx_, object.place()));
    }
    template <class T>
    void root(const std::string &name, const object<T> &object) {
        check(caliburn_heap_set_root(&tx_, name.c_str(), object.place()));
    }
    // Marks a place that the transaction can be rolled back to, any number of times, at any depth.
    using savepoint = caliburn_savepoint_t;
    savepoint mark() {
        savepoint marked;
        check(caliburn_savepoint(&tx_, &marked));
        return marked;
    }
    void rollback_to(const savepoint &marked) { check(caliburn_rollback_to(&tx_, &marked)); }
    void release(const savepoint &marked) { check(caliburn_release(&tx_, &marked)); }
    // A part of another transaction, in which another thread can declare and store meanwhile: `transaction part{of(tx)}`.
    // What it has changed is the other's when that has adopted it; left without, it is undone.
    struct of {
        explicit of(transaction &whole) noexcept : whole_(whole) {}
        transaction &whole_;
    };
    explicit transaction(of whole) {
        check(caliburn_branch(&whole.whole_.tx_, &tx_));
        open_ = true;
    }
    void adopt(transaction &part) { part.ended(caliburn_adopt(&tx_, &part.tx_)); }
    void commit(int failure_class = CALIBURN_PROCESS) {
        check_whole();
        ended(caliburn_commit(&tx_, failure_class));
    }
    // Makes it durable and undecided: see caliburn_prepare().
    void prepare(const std::string &global_id) {
        check_whole();
        ended(caliburn_prepare(&tx_, global_id.data(), global_id.size()));
    }
    void abort() { ended(caliburn_abort(&tx_)); }
    caliburn_tx *raw() noexcept { return &tx_; }
    // The heap that it allocates from.
    caliburn_heap *of_heap() const {
        if (!heap_) throw error(CALIBURN_INVALID, "it is a transaction of a store, not of a heap");
        return heap_;
    }
    // A change was left half done: it can only be aborted.
    void fail() noexcept { failed_ = true; }

private:
    void check_whole() const {
        if (failed_) throw error(CALIBURN_INVALID, "a change of the transaction failed half way: it can only be aborted");
    }
    // What is refused as invalid has not ended.
    void ended(int code) {
        open_ = open_ && code == CALIBURN_INVALID;
        check(code);
    }
    caliburn_tx tx_ = CALIBURN_TX_INITIALIZER;
    caliburn_heap *heap_ = nullptr;
    bool open_ = false;
    bool failed_ = false;
};

}  // namespace caliburn
#endif
