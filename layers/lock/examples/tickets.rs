//! Tickets for a concert, sold and given back on several threads. What is left is a counter whose changes commute:
//! nobody waits for another buyer, and no seat is sold twice, whichever of the sales that are under way commit.

use caliburn_engine::{Class, Store};
use caliburn_lock::{Counters, Detector, EscrowError};
use caliburn_nest::{Error, transact_following};
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

const SEATS: i64 = 500;
const LEFT: usize = 0;

/// Sells until no seat is left. Tickets sold, what is left, and how many buyers were refused.
pub fn run(path: &Path) -> Result<(i64, i64, u64), Box<dyn std::error::Error>> {
    let store = Store::options().create(true).open(path)?;
    let region = store.segment_or_create("concert", 65_536)?.map_all()?;
    let mut tx = store.begin(caliburn_engine::Mode::Restore)?;
    tx.store(&region, 0, &SEATS)?;
    tx.commit(Class::Process)?;
    let detector = Detector::new();
    let seats = Counters::new(&detector, &region, 0, 1, 0..=SEATS);
    let (sold, refused) = (AtomicI64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for buyer in 0..4u64 {
            let (store, detector, seats, sold, refused) = (&store, &detector, &seats, &sold, &refused);
            scope.spawn(move || {
                for round in 0.. {
                    let wanted = (buyer + round) as i64 % 4 + 1;
                    let bought = transact_following(store, seats.companion(detector), Class::Process, |tx| {
                        let (put_off, owner) = tx.companion();
                        seats.change(put_off, owner, LEFT, -wanted)?;
                        // Some change their minds.
                        if round % 5 == 0 { Err(tx.abort("too dear")) } else { Ok(()) }
                    });
                    match bought {
                        Ok(()) => _ = sold.fetch_add(wanted, Relaxed),
                        Err(Error::Aborted(_)) => {}
                        Err(Error::Followed(error)) if is_bounds(&*error) => {
                            refused.fetch_add(1, Relaxed);
                            // Nobody has given any back: it is sold out, or nearly.
                            if wanted == 1 {
                                return;
                            }
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    // Waits for all that is outstanding.
    let left = transact_following(&store, seats.companion(&detector), Class::Process, |tx| {
        let (put_off, owner) = tx.companion();
        Ok::<_, Error>(seats.read(put_off, owner, LEFT)?)
    })?;
    Ok((sold.into_inner(), left, refused.into_inner()))
}

fn is_bounds(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(EscrowError::Bounds { .. }))
}

#[allow(dead_code, reason = "its test runs it in a directory of its own")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (sold, left, refused) = run(&dir.path().join("store"))?;
    println!("{sold} tickets were sold and {left} are left; {refused} buyers were refused");
    Ok(())
}
