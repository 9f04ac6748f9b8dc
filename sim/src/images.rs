//! Images of a region under the deterministic scheduler: a writer that keeps pages for them, two threads that take
//! and read them, a truncator. An image never shows anything but the transactions before it.

use crate::disk::Disk;
use crate::life::{Flavour, LifeMachine, SEGMENT, STORE, options};
use crate::media::{Hardware, Machine};
use crate::random::Random;
use crate::threads::{default_start, turns};
use caliburn::{Class, Image, Mode, Region, Store};
use shuttle::sync::RwLock;
use std::sync::{Arc, Mutex};

const TRANSACTIONS: u64 = 12;
const PAGE: usize = 4096;
const PAGES: usize = SEGMENT as usize / PAGE;

/// What the region holds, a number for each half page: comes with the turn.
type Numbers = Vec<u64>;
/// The images that are read. Who has it goes on without the scheduler's leave.
type Images = Mutex<Vec<Arc<Image>>>;

fn offset(place: usize) -> usize {
    place * PAGE / 2 + 16
}

fn write(store: &Store, region: &Region, turn: &RwLock<Numbers>, images: &Images, seed: u64) {
    let mut random = Random::new(seed);
    for number in 1..=TRANSACTIONS {
        let mut numbers = turn.write().expect("no panic under this lock");
        let images: Vec<Arc<Image>> = {
            let mut images = images.lock().expect("no panic under this lock");
            images.retain(|image| Arc::strong_count(image) > 1);
            images.clone()
        };
        let mut tx = store.begin(Mode::Restore).expect("sound");
        let mut changed = numbers.clone();
        for _ in 0..1 + random.below(4) {
            let place = random.below(2 * PAGES as u64) as usize;
            tx.set_range(region, offset(place)..offset(place) + 8).expect("sound");
            images.iter().for_each(|image| image.keep(offset(place), 8));
            tx.store(region, offset(place), &number).expect("declared");
            changed[place] = number;
        }
        if random.chance(1, 4) {
            tx.abort();
        } else {
            tx.commit(Class::Process).expect("sound");
            *numbers = changed;
        }
    }
}

fn read(region: &Region, turn: &RwLock<Numbers>, images: &Images) {
    for _ in 0..3 {
        let (image, expected) = {
            let numbers = turn.read().expect("no panic under this lock");
            let image = Arc::new(region.image().expect("a mapping can be had"));
            images.lock().expect("no panic under this lock").push(image.clone());
            (image, numbers.clone())
        };
        image.settle().expect("the system tells");
        for look in 0..6 {
            for (place, number) in expected.iter().enumerate() {
                let mut bytes = [0; 8];
                image.read(offset(place), &mut bytes);
                assert_eq!(u64::from_le_bytes(bytes), *number, "half page {place}, at look {look}");
            }
            shuttle::thread::yield_now();
        }
    }
}

fn schedule(default_start: &Disk, seed: u64, flavour: Flavour) {
    // Short of memory: private copies are dropped as soon as they may be.
    let hardware = Hardware { short: seed.is_multiple_of(2), ..flavour.hardware() };
    let machine: Arc<LifeMachine> = Machine::new(default_start.clone(), [2; 16], 1 << 41, hardware, None);
    machine.run(|| {
        let store = options(&machine, 1 + (seed % 40) as u8, flavour).open(STORE).expect("sound");
        let region = store.segment("data").expect("made").map_all().expect("sound");
        let turn = RwLock::new(vec![0; 2 * PAGES]);
        let images = Images::default();
        shuttle::thread::scope(|scope| {
            let (store, region, turn, images) = (&store, &region, &turn, &images);
            for _ in 0..2 {
                scope.spawn(move || read(region, turn, images));
            }
            scope.spawn(move || write(store, region, turn, images, seed));
            for round in 0..6 {
                match round % 2 {
                    0 => store.tend_truncation().expect("sound"),
                    _ => store.truncate().expect("sound"),
                }
            }
        });
    });
}

/// Tries so many schedules.
pub fn schedules(count: u64, seed: u64, flavour: Flavour) {
    let default_start = default_start(flavour);
    turns(count, seed, move |number| schedule(&default_start, number, flavour));
}
