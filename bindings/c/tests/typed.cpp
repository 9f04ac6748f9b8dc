// caliburn_typed.hpp: the collections against those of the standard library, and objects that a program in Rust has
// made and will look at (crates/caliburn/examples/with_cpp.rs).
//
//     typed DIRECTORY              objects of its own
//     typed DIRECTORY change       those that Rust has made: changes them, and writes down what they are
//     typed DIRECTORY check        compares them with what Rust has written down, and takes everything out
#include <caliburn_typed.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#define CHECK(what)                                                             \
    do {                                                                        \
        if (!(what)) {                                                          \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            std::exit(1);                                                       \
        }                                                                       \
    } while (0)

struct Account {
    std::int64_t balance;
    caliburn::vector<std::uint32_t> history;
};

struct Node {
    std::uint64_t number;
    caliburn::ptr<Node> next;
};

struct World {
    caliburn::map<caliburn::string, Account> accounts;
    caliburn::map<std::uint64_t, std::int32_t> numbers;
    caliburn::vector<caliburn::string> names;
    caliburn::ptr<Node> chain;
};

template <>
struct caliburn::moved<Account> {
    static void by(Account &account, std::ptrdiff_t by) { tell(account.history, by); }
};

// What holds distances is no plain data, however it is nested.
static_assert(!caliburn::detail::plain<Account>::value && !caliburn::detail::plain<Node>::value, "pointers inside");
static_assert(caliburn::detail::plain<std::uint64_t>::value, "a number");

static std::uint64_t state = 1;
static std::uint64_t random_number(std::uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

struct Model {
    std::map<std::string, std::pair<std::int64_t, std::vector<std::uint32_t>>> accounts;
    std::map<std::uint64_t, std::int32_t> numbers;
    std::vector<std::string> names;
    std::vector<std::uint64_t> chain;

    std::string text() const {
        std::ostringstream out;
        for (auto &account : accounts) {
            out << "account " << account.first << ' ' << account.second.first;
            for (std::uint32_t amount : account.second.second) out << ' ' << amount;
            out << '\n';
        }
        for (auto &number : numbers) out << "number " << number.first << ' ' << number.second << '\n';
        for (auto &name : names) out << "name " << name << '\n';
        for (std::uint64_t number : chain) out << "link " << number << '\n';
        return out.str();
    }
};

// What is there, in order.
static std::string text(const World &world) {
    std::ostringstream out;
    std::size_t count = 0;
    world.accounts.for_each([&](const caliburn::string &name, const Account &account) {
        out << "account " << name.str() << ' ' << account.balance;
        for (std::uint32_t amount : account.history) out << ' ' << amount;
        out << '\n';
        ++count;
    });
    CHECK(count == world.accounts.size());
    for (auto entry : world.numbers) out << "number " << entry.first << ' ' << entry.second << '\n';
    for (const caliburn::string &name : world.names) out << "name " << name.str() << '\n';
    for (const Node *node = world.chain.get(); node; node = node->next.get()) out << "link " << node->number << '\n';
    return out.str();
}

static void step(caliburn::writer &in, World &world, Model &model, std::uint64_t range) {
    std::uint64_t number = random_number(range);
    std::string name = "account " + std::to_string(number);
    name += std::string(static_cast<std::size_t>(number % 30), '.');
    // No spaces: the text is read by words.
    std::replace(name.begin(), name.end(), ' ', '_');
    switch (random_number(8)) {
    case 0:
    case 1: {
        Account &account = world.accounts.at(in, name);
        account.balance -= static_cast<std::int64_t>(number);
        account.history.push_back(in, static_cast<std::uint32_t>(number));
        model.accounts[name].first -= static_cast<std::int64_t>(number);
        model.accounts[name].second.push_back(static_cast<std::uint32_t>(number));
        break;
    }
    case 2: {
        Account *account = world.accounts.change(in, name);
        CHECK((account != nullptr) == (model.accounts.count(name) == 1));
        if (account) account->history.clear(in);
        CHECK(world.accounts.erase(in, name) == (model.accounts.erase(name) == 1));
        break;
    }
    case 3:
    case 4:
        world.numbers.insert(in, number, static_cast<std::int32_t>(number) - 50);
        model.numbers[number] = static_cast<std::int32_t>(number) - 50;
        break;
    case 5:
        CHECK(world.numbers.erase(in, number) == (model.numbers.erase(number) == 1));
        break;
    case 6:
        if (model.names.size() > 40) {
            for (std::size_t i = 0; i < world.names.size(); ++i) world.names.change(in, i).clear(in);
            world.names.clear(in);
            model.names.clear();
        }
        world.names.emplace_back(in).assign(in, name);
        model.names.push_back(name);
        world.names.change(in, world.names.size() / 2).append(in, "+");
        model.names[world.names.size() / 2] += "+";
        break;
    default: {
        Node *made = in.allocate<Node>();
        made->number = number;
        made->next.point(world.chain.get());
        world.chain.set(in, made);
        model.chain.insert(model.chain.begin(), number);
    }
    }
}

static void steps(const caliburn::heap &heap, caliburn::objects<World> &world, Model &model, int count, std::uint64_t range) {
    for (int i = 0; i < count; ++i) {
        bool undone = random_number(5) == 0;
        Model before;
        if (undone) before = model;
        {
            caliburn::transaction tx(heap);
            caliburn::writer in(tx);
            for (std::uint64_t n = random_number(6); n > 0; --n) step(in, *world, model, range);
            if (!undone) tx.commit();
        }
        if (undone) model = before;
        if (i % 50 == 0) CHECK(text(*world) == model.text());
    }
    CHECK(text(*world) == model.text());
}

// Entries from a key on, as std's map has them.
static void ranges(const World &world, const Model &model, std::uint64_t range) {
    for (std::uint64_t key = 0; key < range + 2; ++key) {
        auto there = world.numbers.lower_bound(key);
        auto expected = model.numbers.lower_bound(key);
        for (int i = 0; i < 20; ++i, ++there, ++expected) {
            CHECK((there == world.numbers.end()) == (expected == model.numbers.end()));
            if (expected == model.numbers.end()) break;
            CHECK((*there).first == expected->first && (*there).second == expected->second);
        }
    }
}

template <class F>
static void fails(F call, int code) {
    try {
        call();
    } catch (const caliburn::error &error) {
        CHECK(error.code() == code);
        return;
    }
    CHECK(false);
}

// What a program may do that is not in the model.
static void corners(const caliburn::heap &heap, caliburn::objects<World> &world) {
    fails([&] { caliburn::objects<World>::create(heap, "again"); }, CALIBURN_EXISTS);
    fails([&] { caliburn::objects<std::array<char, 100000>> larger(heap); }, CALIBURN_INVALID);
    std::string before = text(*world);
    caliburn::transaction tx(heap);
    caliburn::writer in(tx);
    // Keys that are in the map, whose entries move.
    caliburn::map<std::uint64_t, std::uint64_t> &parents = *in.allocate<caliburn::map<std::uint64_t, std::uint64_t>>();
    for (std::uint64_t i = 1; i < 400; ++i) {
        parents.insert(in, i, i * 7 % 1000 + 400);
        parents.insert(in, *parents.find(i), i);
        CHECK(parents.find(i * 7 % 1000 + 400) && parents.find(i));
    }
    while (!parents.empty()) {
        std::size_t size = parents.size();
        auto middle = parents.lower_bound(400);
        if (middle == parents.end()) middle = parents.begin();
        std::uint64_t key = (*middle).first;
        CHECK(parents.erase(in, (*middle).first) && parents.size() == size - 1 && !parents.find(key));
    }
    for (std::uint64_t i = 0; i < 1000; ++i) parents.insert(in, i, i);
    parents.clear(in);
    CHECK(parents.empty() && parents.begin() == parents.end());
    parents.insert(in, 5, 5);
    CHECK(parents.size() == 1);
    parents.clear(in);
    // Text grows in proportion, and changes hands.
    caliburn::string &one = world->names.emplace_back(in), &two = *in.allocate<caliburn::string>();
    for (int i = 0; i < 1000; ++i) one.append(in, "x");
    caliburn_heap_statistics grown;
    caliburn::check(caliburn_heap_statistics_get(heap.raw(), &grown));
    CHECK(one.size() == 1000 && in.place(one.data()) != CALIBURN_NOWHERE && grown.large_bytes == 0);
    two.swap(in, one);
    CHECK(one.empty() && two.size() == 1000 && two != one && two == std::string(1000, 'x'));
    one.swap(in, two);
    // A pointer to itself is none.
    try {
        world->chain.set(in, reinterpret_cast<Node *>(&world->chain));
        CHECK(false);
    } catch (const std::invalid_argument &) {
    }
    // What failed half way is not committed.
    fails([&] { in.free(&before); }, CALIBURN_NOT_ALLOCATED);
    fails([&] { tx.commit(); }, CALIBURN_INVALID);
    tx.abort();
    CHECK(text(*world) == before);
}

static void empty(const caliburn::heap &heap, caliburn::objects<World> &world) {
    std::vector<std::string> names;
    std::vector<std::uint64_t> numbers;
    world->accounts.for_each([&](const caliburn::string &name, const Account &) { names.push_back(name.str()); });
    world->numbers.for_each([&](std::uint64_t key, std::int32_t) { numbers.push_back(key); });
    caliburn::transaction tx(heap);
    caliburn::writer in(tx);
    for (const std::string &name : names) {
        world->accounts.change(in, name)->history.clear(in);
        CHECK(world->accounts.erase(in, name));
    }
    for (std::size_t i = 0; i < numbers.size() / 2; ++i) CHECK(world->numbers.erase(in, numbers[i]));
    world->numbers.clear(in);
    for (std::size_t i = 0; i < world->names.size(); ++i) world->names.change(in, i).clear(in);
    world->names.clear(in);
    while (Node *first = world->chain.get()) {
        world->chain.set(in, first->next.get());
        in.free(first);
    }
    tx.commit();
    CHECK(text(*world).empty());
    caliburn_heap_statistics left;
    std::memset(&left, 0, sizeof left);
    caliburn::check(caliburn_heap_statistics_get(heap.raw(), &left));
    // The root and the record of types.
    CHECK(left.objects == 2);
}

static void own(const std::string &path) {
    Model model;
    {
        caliburn::store store(path, caliburn::options().set(CALIBURN_CREATE, 1).set(CALIBURN_POLICY, CALIBURN_UNDO));
        caliburn::heap heap(store, "world");
        try {
            caliburn::objects<World> none(heap);
            CHECK(false);
        } catch (const caliburn::error &error) {
            CHECK(error.code() == CALIBURN_NOT_FOUND);
        }
        caliburn::objects<World> world = caliburn::objects<World>::create(heap, "types of a test");
        CHECK(world.types() == "types of a test");
        steps(heap, world, model, 3000, 400);
        CHECK(world->numbers.find(1000) == nullptr && model.chain.size() > 10);
        ranges(*world, model, 400);
        corners(heap, world);
        try {
            world->names.at(1000);
            CHECK(false);
        } catch (const std::out_of_range &) {
        }
    }
    caliburn::store store(path);
    caliburn::heap heap(store, "world");
    caliburn::objects<World> world(heap);
    CHECK(text(*world) == model.text());
    steps(heap, world, model, 300, 40);
    ranges(*world, model, 400);
    empty(heap, world);
}

static void undecided(const std::string &path) {
    caliburn::store store(path, caliburn::options().set(CALIBURN_CREATE, 1));
    caliburn::heap heap(store, "world");
    caliburn::objects<World> world = caliburn::objects<World>::create(heap, "types of a test");
    for (int committed = 0; committed < 2; ++committed) {
        caliburn::transaction tx(heap);
        caliburn::writer in(tx);
        world->numbers.insert(in, 1, 1);
        tx.prepare("one");
        committed ? heap.commit_prepared("one") : heap.abort_prepared("one");
        CHECK(world->numbers.size() == static_cast<std::size_t>(committed));
    }
}

static std::string read(const std::string &path) {
    std::ifstream file(path);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
}

static void with_rust(const std::string &dir, bool change) {
    caliburn::store store(dir + "/store");
    caliburn::heap heap(store, "world");
    caliburn::objects<World> world(heap);
    CHECK(world.types().find("root World\n") != std::string::npos);
    CHECK(text(*world) == read(dir + "/expected"));
    if (!change) return empty(heap, world);
    Model model;
    world->accounts.for_each([&](const caliburn::string &name, const Account &account) {
        auto &made = model.accounts[name.str()];
        made.first = account.balance;
        made.second.assign(account.history.begin(), account.history.end());
    });
    world->numbers.for_each([&](std::uint64_t key, std::int32_t value) { model.numbers[key] = value; });
    for (const caliburn::string &name : world->names) model.names.push_back(name.str());
    for (const Node *node = world->chain.get(); node; node = node->next.get()) model.chain.push_back(node->number);
    CHECK(model.text() == text(*world) && model.accounts.size() > 100);
    steps(heap, world, model, 2000, 300);
    std::ofstream(dir + "/expected") << model.text();
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    std::string dir = argv[1];
    if (argc == 2) {
        own(dir + "/typed");
        undecided(dir + "/undecided");
    } else {
        with_rust(dir, std::string(argv[2]) == "change");
    }
    std::puts("sound");
}
