// caliburn.hpp: scopes, typed objects and roots, exceptions.
#include <caliburn.hpp>
#include <rms.h>
#include <vista.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(what)                                                             \
    do {                                                                        \
        if (!(what)) {                                                          \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            std::exit(1);                                                       \
        }                                                                       \
    } while (0)

struct Account {
    std::int64_t balance;
    std::uint64_t next;
};

static caliburn::options small() {
    return caliburn::options()
        .set(CALIBURN_CREATE, 1)
        .set(CALIBURN_LOG_BYTES, 1 << 20)
        .set(CALIBURN_STAGE_BYTES, 1 << 20)
        .set(CALIBURN_RESERVE_BYTES, 1 << 24)
        .set(CALIBURN_MEMORY_BUDGET, 1 << 26);
}

static void regions(const std::string &path) {
    int told = 0;
    caliburn::options watched = small();
    watched.progress([&told](int, std::uint64_t done, std::uint64_t total) { return ++told > 0 && done <= total; });
    caliburn::store store(path, std::move(watched));
    CHECK(told > 0);
    caliburn::segment segment = store.segment("data", 65536);
    CHECK(segment.name() == "data" && segment.size() == 65536);
    caliburn::region region = segment.map();
    int *numbers = region.at<int>(0);
    {
        caliburn::transaction tx(store);
        tx.change(numbers) = 1;
        tx.store(numbers + 1, 2);
        tx.commit(CALIBURN_POWER);
    }
    try {
        caliburn::transaction tx(store);
        tx.change(numbers) = 7;
        throw std::runtime_error("on the way");
    } catch (const std::runtime_error &) {
    }
    CHECK(numbers[0] == 1 && numbers[1] == 2);
    try {
        region.at<int>(65533);
        CHECK(false);
    } catch (const std::out_of_range &) {
    }
    try {
        caliburn::transaction tx(store);
        int elsewhere = 0;
        tx.change(&elsewhere) = 1;
        CHECK(false);
    } catch (const caliburn::error &error) {
        CHECK(error.code() == CALIBURN_RANGE && std::string(error.what()).find("no single region") != std::string::npos);
    }
    {
        caliburn::transaction tx(store);
        tx.change(numbers) = 10;
        caliburn::transaction::savepoint mark = tx.mark();
        tx.change(numbers) = 11;
        tx.rollback_to(mark);
        CHECK(numbers[0] == 10);
        {
            caliburn::transaction kept{caliburn::transaction::of(tx)};
            kept.change(numbers + 1) = 20;
            tx.adopt(kept);
            caliburn::transaction undone{caliburn::transaction::of(tx)};
            undone.change(numbers + 2) = 30;
        }
        tx.release(mark);
        tx.commit();
        CHECK(numbers[0] == 10 && numbers[1] == 20 && numbers[2] == 0);
    }
    caliburn::region moved = std::move(region);
    CHECK(region.data() == nullptr && moved.data() == numbers);
    CHECK(store.statistics().committed == 2 && store.query().uncommitted == 0);
    store.flush();
    store.truncate();
    moved.unmap();
    store.close();
    try {
        store.flush();
        CHECK(false);
    } catch (const caliburn::error &error) {
        CHECK(error.code() == CALIBURN_INVALID);
    }
}

static void objects(const std::string &path) {
    std::uint64_t place;
    {
        caliburn::store store(path, small());
        caliburn::heap heap(store, "objects");
        CHECK(!heap.root<Account>("first"));
        caliburn::transaction tx(heap);
        caliburn::object<Account> first = tx.make<Account>(), second = tx.make<Account>();
        first->balance = 100;
        first->next = second.place();
        second->balance = -100;
        second->next = CALIBURN_NOWHERE;
        tx.root("first", first);
        tx.commit();
        place = second.place();
        caliburn::transaction undone(heap);
        undone.change(first).balance = 5;
        undone.free(second);
        undone.abort();
        CHECK(first->balance == 100);
        heap.check_all();
    }
    caliburn::store store(path, small());
    caliburn::heap heap(store, "objects");
    caliburn::object<Account> first = heap.root<Account>("first");
    CHECK(first && first->balance == 100 && first->next == place);
    CHECK(heap.at<Account>(place)->balance == -100);
    try {
        store.close();
        CHECK(false);
    } catch (const caliburn::error &error) {
        CHECK(error.code() == CALIBURN_BUSY);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    std::string dir = argv[1];
    regions(dir + "/regions");
    objects(dir + "/objects");
    std::puts("sound");
}
