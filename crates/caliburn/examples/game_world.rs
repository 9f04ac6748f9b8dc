//! A game's world that several threads change: each zone is a heap of its own, so zones are changed in parallel,
//! and a creature that walks from one to the next is never lost and never twice there, whoever is killed and when.
//!
//! ```text
//!   zone a: creatures, leaving      1 it leaves: from `creatures` to `leaving`          (a transaction in a)
//!   zone b: creatures, came         2 it comes: into `creatures`, its walk into `came`  (a transaction in b)
//!                                   3 it is gone: out of `leaving`                      (a transaction in a)
//!                                   4 its walk is forgotten                             (a transaction in b)
//! ```
//!
//! After a crash each step is simply done again: 2 does nothing for a walk that has come.
//!
//! `cargo run --release -p caliburn --example game_world -- STORE SECONDS`

use caliburn::prelude::*;
use caliburn::{Error, Snapshot};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Zones, in a circle.
pub const ZONES: usize = 4;
/// Creatures of each zone when the world is made.
const CREATURES: u64 = 250;
/// Width of a zone.
const WIDTH: i32 = 1000;

/// A creature.
#[derive(Recoverable, Clone, Copy)]
#[repr(C)]
pub struct Creature {
    x: i32,
    speed: i32,
    /// Gold that it has; the world's is always the same.
    gold: u64,
}

/// A part of the world.
#[derive(Recoverable, Default)]
#[repr(C)]
pub struct Zone {
    creatures: PHashMap<u64, Creature>,
    /// Those that are on their way to the next zone, by the numbers of their walks.
    leaving: PBTreeMap<u64, Walk>,
    /// Walks from the zone before that have come.
    came: PHashSet<u64>,
    walks: u64,
    ticks: u64,
}

/// A creature on its way.
#[derive(Recoverable, Clone, Copy)]
#[repr(C)]
pub struct Walk {
    name: u64,
    creature: Creature,
}

/// The world: its zones.
pub struct World {
    zones: Vec<Objects<Zone>>,
}

impl World {
    /// Opens a world, made if there is none.
    pub fn open(store: &Store) -> Result<World, Error> {
        let open = |number: usize| {
            let zone = Objects::<Zone>::open(store, &format!("zone{number}"))?;
            if zone.read().ticks == 0 {
                zone.transact_in(Class::Process, |mut zone| -> Result<(), Error> {
                    let mut zone = zone.fields();
                    *zone.ticks = 1;
                    for i in 0..CREATURES {
                        let (name, speed) = (number as u64 * CREATURES + i, 1 + (i % 37) as i32);
                        let x = (i * 7919) as i32 % WIDTH;
                        zone.creatures.insert(name, Creature { x, speed, gold: 100 });
                    }
                    Ok(())
                })?;
            }
            Ok(zone)
        };
        Ok(World { zones: (0..ZONES).map(open).collect::<Result<_, Error>>()? })
    }

    /// Lets a zone go on by one step: all walk, those that meet trade, those that come to its end leave it.
    pub fn tick(&self, number: usize) -> Result<(), Error> {
        let (here, next) = (&self.zones[number], &self.zones[(number + 1) % ZONES]);
        // 1
        here.transact_in(Class::Process, |mut zone| -> Result<(), Error> {
            let mut zone = zone.fields();
            *zone.ticks += 1;
            let names: Vec<u64> = zone.creatures.keys().copied().collect();
            let mut met: Option<u64> = None;
            for name in names {
                let mut creature = zone.creatures.get_mut(&name).expect("it is there");
                creature.x += creature.speed;
                if creature.x >= WIDTH {
                    let mut creature = zone.creatures.remove(&name).expect("it is there");
                    creature.x -= WIDTH;
                    *zone.walks += 1;
                    let walk = *zone.walks;
                    zone.leaving.insert(walk, Walk { name, creature });
                } else if let Some(other) = met.take() {
                    // Gold goes from one to the other.
                    let given = zone.creatures[&other].gold / 10;
                    zone.creatures.get_mut(&other).expect("it is there").gold -= given;
                    zone.creatures.get_mut(&name).expect("it is there").gold += given;
                } else {
                    met = Some(name);
                }
            }
            Ok(())
        })?;
        // 2
        let leaving: Vec<(u64, Walk)> = here.read().leaving.iter().map(|(walk, of)| (*walk, *of)).collect();
        if leaving.is_empty() {
            return Ok(());
        }
        next.transact_in(Class::Process, |mut zone| -> Result<(), Error> {
            let mut zone = zone.fields();
            for (walk, Walk { name, creature }) in &leaving {
                if zone.came.insert(*walk) {
                    zone.creatures.insert(*name, *creature);
                }
            }
            Ok(())
        })?;
        // 3
        here.transact_in(Class::Process, |mut zone| -> Result<(), Error> {
            let mut zone = zone.fields();
            leaving.iter().for_each(|(walk, _)| _ = zone.leaving.remove(walk));
            Ok(())
        })?;
        // 4
        next.transact_in(Class::Process, |mut zone| -> Result<(), Error> {
            let mut zone = zone.fields();
            leaving.iter().for_each(|(walk, _)| _ = zone.came.remove(walk));
            Ok(())
        })
    }

    /// Every zone by a thread, until it is enough.
    pub fn run(&self, enough: &AtomicBool) -> Result<(), Error> {
        std::thread::scope(|scope| {
            let run = |zone| {
                move || -> Result<(), Error> {
                    while !enough.load(Ordering::Relaxed) {
                        self.tick(zone)?;
                    }
                    Ok(())
                }
            };
            let threads: Vec<_> = (0..ZONES).map(|zone| scope.spawn(run(zone))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })
    }

    /// Who is where while the game goes on: creatures of each zone, from a snapshot of each. Nobody waits.
    pub fn look(&self) -> Result<Vec<usize>, Error> {
        let count = |zone: &Objects<Zone>| zone.snapshot().map(|zone: Snapshot<Zone>| zone.creatures.len());
        self.zones.iter().map(count).collect()
    }

    /// When nobody changes it: how many creatures there are, each once, and how much gold they have; those on their
    /// way are counted where they are going.
    pub fn count(&self) -> (usize, u64) {
        let mut names = std::collections::HashMap::new();
        for (number, zone) in self.zones.iter().enumerate() {
            let (view, next) = (zone.read(), self.zones[(number + 1) % ZONES].read());
            let walking = view.leaving.iter().filter(|(walk, _)| !next.came.contains(*walk));
            let walking = walking.map(|(_, walk)| (walk.name, walk.creature.gold));
            let here = view.creatures.iter().map(|(name, creature)| (*name, creature.gold));
            for (name, gold) in here.chain(walking) {
                assert!(names.insert(name, gold).is_none(), "creature {name} is there twice");
            }
        }
        (names.len(), names.values().sum())
    }

    /// Steps that were made.
    pub fn ticks(&self) -> u64 {
        self.zones.iter().map(|zone| zone.read().ticks).sum()
    }
}

#[allow(dead_code, reason = "the tests call what is above")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, seconds] = &arguments[..] else { return Err("usage: game_world STORE SECONDS".into()) };
    let seconds: u64 = seconds.parse()?;
    let store = Store::options().create(true).open(path)?;
    let world = World::open(&store)?;
    let (enough, before) = (AtomicBool::new(false), world.ticks());
    std::thread::scope(|scope| -> Result<(), Error> {
        scope.spawn(|| {
            for _ in 0..seconds {
                std::thread::sleep(Duration::from_secs(1));
                println!("{:?}", world.look());
            }
            enough.store(true, Ordering::Relaxed);
        });
        world.run(&enough)
    })?;
    println!("{} steps; creatures and gold: {:?}", world.ticks() - before, world.count());
    Ok(())
}
