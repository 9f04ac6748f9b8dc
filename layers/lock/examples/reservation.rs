//! A journey: flight, hotel and car are booked side by side, as children of one transaction. When one aborts,
//! since nothing is left there, another is tried in its place; the journey commits with all three, or nothing is
//! booked.

use caliburn_engine::{Class, Region, Store};
use caliburn_lock::{Detector, Locks, Owner, Standard::*};
use caliburn_nest::{Error, Tx, child, transact_following};
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

/// Offers, each with how many are left: a word in the region.
const OFFERS: [(&str, u64); 6] =
    [("flight", 30), ("night flight", 10), ("hotel", 12), ("guest house", 8), ("car", 15), ("bus", 100)];

struct Agency<'a> {
    store: &'a Store,
    left: &'a Region,
    detector: &'a Detector,
    offers: Locks<usize>,
}

impl<'a> Agency<'a> {
    fn left(&self, offer: usize) -> u64 {
        self.left.load(offer * 8)
    }

    fn book(&self, tx: &mut Tx<'a, Owner>, offer: usize) -> Result<usize, Error> {
        self.offers.lock(tx.companion(), offer, Exclusive)?;
        match self.left(offer) {
            0 => Err(tx.abort(format!("no {} is left", OFFERS[offer].0))),
            left => tx.store(self.left, offer * 8, &(left - 1)).map(|()| offer),
        }
    }

    /// Books the first of two offers that is left, each try a child of its own.
    fn either(&self, tx: &mut Tx<'a, Owner>, first: usize, second: usize) -> Result<usize, Error> {
        tx.nest(|child| self.book(child, first)).or_else(|error| match error {
            Error::Aborted(_) => tx.nest(|child| self.book(child, second)),
            other => Err(other),
        })
    }

    /// What was booked: three offers.
    fn journey(&self) -> Result<Vec<usize>, Error> {
        transact_following(self.store, self.detector.owner(), Class::Power, |tx| {
            tx.cobegin([
                child(|tx| self.either(tx, 0, 1)),
                child(|tx| self.either(tx, 2, 3)),
                child(|tx| self.either(tx, 4, 5)),
            ])
            .into_iter()
            .collect()
        })
    }
}

/// How many journeys were booked, and what is left of each offer.
pub fn run(dir: &Path) -> Result<(usize, Vec<u64>), Failure> {
    let store = Store::options().create(true).open(dir)?;
    let left = store.segment_or_create("left", 65_536)?.map_all()?;
    let detector = Detector::new();
    let agency = Agency { store: &store, left: &left, detector: &detector, offers: detector.locks() };
    transact_following(&store, detector.owner(), Class::Power, |tx| {
        OFFERS.iter().enumerate().try_for_each(|(offer, (_, count))| tx.store(&left, offer * 8, count))
    })?;
    let mut journeys = 0;
    let why = loop {
        match agency.journey() {
            Ok(booked) => {
                journeys += 1;
                assert_eq!(booked.len(), 3);
            }
            Err(why) => break why,
        }
    };
    assert_eq!(why.to_string(), "aborted: no guest house is left");
    let left: Vec<u64> = (0..OFFERS.len()).map(|offer| agency.left(offer)).collect();
    // What the last journey booked beside the house that it did not get is not booked.
    for kind in 0..3 {
        let booked: u64 = (2 * kind..2 * kind + 2).map(|offer| OFFERS[offer].1 - left[offer]).sum();
        assert_eq!(booked, journeys);
    }
    Ok((journeys as usize, left))
}

#[allow(dead_code, reason = "tests call run")]
fn main() -> Result<(), Failure> {
    let dir = std::env::args_os().nth(1).expect("name a directory for the store");
    let (journeys, left) = run(Path::new(&dir))?;
    println!("{journeys} journeys booked; left: {left:?}");
    Ok(())
}
