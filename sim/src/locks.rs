//! Locks under the deterministic scheduler: a family with two children side by side, and two other families, that
//! lock a few names in turn. Nobody waits for ever, no two hold a lock in modes that do not go together unless one
//! is above the other, and each deadlock that is found has a victim that is told.

use crate::random::Random;
use crate::threads::turns;
use caliburn_lock::{Deadlock, Detector, LockError, Locks, Mode, Owner, Standard};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

const NAMES: u64 = 3;
/// How often a victim tries again.
const TRIES: usize = 4;

/// A transaction's serials, from its top's on.
type Line = Vec<u64>;

/// What is held, as those who hold it say: less than what they do hold, so that it shows no more than is wrong.
#[derive(Default)]
struct Said {
    held: Mutex<Vec<(u64, Line, Standard)>>,
    victims: Mutex<HashSet<u64>>,
}

impl Said {
    fn takes(&self, name: u64, line: &Line, mode: Standard) {
        let mut held = self.held.lock().expect("no panic here");
        for (other, of, with) in held.iter() {
            let apart = !line.starts_with(of) && !of.starts_with(line);
            let clashes = *other == name && apart && !with.goes_with(mode);
            assert!(!clashes, "{line:?} holds {name} {mode:?}, and {of:?} {with:?}");
        }
        held.push((name, line.clone(), mode));
    }

    fn told(&self, error: LockError) -> Arc<Deadlock> {
        let LockError::Deadlock(deadlock) = error else { panic!("{error}") };
        self.victims.lock().expect("no panic here").insert(deadlock.victim.serial);
        deadlock
    }

    fn gives_up(&self, line: &Line) {
        self.held.lock().expect("no panic here").retain(|(_, of, _)| of != line);
    }

    fn leaves_to_its_parent(&self, line: &Line) {
        let mut held = self.held.lock().expect("no panic here");
        let of_it = held.iter_mut().filter(|(_, of, _)| of == line);
        of_it.for_each(|(_, of, _)| _ = of.pop());
    }
}

struct World {
    detector: Detector,
    locks: Locks<u64>,
    said: Said,
}

/// Runs a transaction, and ends it. Whether it committed; if not, which deadlock it is part of.
fn transaction(
    world: &World,
    mut owner: Owner,
    above: &Line,
    random: &mut Random,
    depth: u32,
) -> Result<(), Arc<Deadlock>> {
    let line: Line = above.iter().copied().chain([owner.id().serial]).collect();
    let done = acts(world, &mut owner, &line, random, depth);
    let done = done.and_then(|()| match owner.goes_on() {
        Err(error) => Err(world.said.told(error)),
        Ok(()) => Ok(()),
    });
    if done.is_ok() && depth > 0 && !random.chance(1, 5) {
        world.said.leaves_to_its_parent(&line);
        owner.commit();
    } else {
        world.said.gives_up(&line);
        owner.end();
    }
    done
}

fn acts(
    world: &World,
    owner: &mut Owner,
    line: &Line,
    random: &mut Random,
    depth: u32,
) -> Result<(), Arc<Deadlock>> {
    for _ in 0..1 + random.below(3) {
        if depth < 2 && random.chance(1, 3) {
            tries(|| transaction(world, owner.child(), line, random, depth + 1))?;
            continue;
        }
        let name = random.below(NAMES);
        let mode = *random.pick(&[Standard::Shared, Standard::Exclusive]);
        match world.locks.lock(owner, name, mode) {
            Ok(()) => world.said.takes(name, line, mode),
            Err(error) => return Err(world.said.told(error)),
        }
    }
    Ok(())
}

/// Runs a transaction until it is no victim. An error is that of one above it.
fn tries(mut transaction: impl FnMut() -> Result<(), Arc<Deadlock>>) -> Result<(), Arc<Deadlock>> {
    let mut last = None;
    for _ in 0..TRIES {
        let Err(deadlock) = transaction() else { return Ok(()) };
        // The victim's own, if it has ended: the next try is another one.
        if last.as_ref() == Some(&deadlock) {
            return Err(deadlock);
        }
        last = Some(deadlock);
    }
    Ok(())
}

fn schedule(seed: u64) {
    let detector = Detector::new();
    let world = World { locks: detector.locks(), detector, said: Said::default() };
    let world = &world;
    shuttle::thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || {
                let mut random = Random::new(seed * 8 + 4 + number);
                _ = tries(|| transaction(world, world.detector.owner(), &Vec::new(), &mut random, 0));
            });
        }
        scope.spawn(move || family(world, seed));
    });
    let left: Vec<_> = (0..NAMES).map(|name| world.locks.status(&name)).collect();
    assert_eq!((world.locks.len(), world.detector.waiting()), (0, 0), "{left:?}");
    let told = world.said.victims.lock().expect("no panic here").len() as u64;
    assert_eq!(world.detector.deadlocks(), told, "each victim is told, and is chosen once");
}

/// Two children side by side, on threads of their own. The top ends when they have.
fn family(world: &World, seed: u64) {
    let mut top = world.detector.owner();
    let line = &vec![top.id().serial];
    shuttle::thread::scope(|scope| {
        for number in 0..2 {
            let child = top.child();
            scope.spawn(move || {
                _ = transaction(world, child, line, &mut Random::new(seed * 8 + number), 1);
            });
        }
    });
    if let Err(error) = world.locks.lock(&mut top, 0, Standard::Exclusive) {
        world.said.told(error);
    }
    world.said.gives_up(line);
    top.end();
}

/// Tries so many schedules.
pub fn schedules(count: u64, seed: u64) {
    turns(count, seed, schedule);
}
