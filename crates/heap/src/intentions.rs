//! The intentions list of a prepared transaction (Lampson): what it has done to the heap, until that is settled.

use crate::change::Change;
use crate::meta;

/// Words of a list: the place of the next one and one, or 0; 1 when its transaction has committed; how many changes;
/// bytes of the identifier; a check of all but the first two. Then the changes, and the identifier, padded.
pub(crate) const NEXT: usize = 0;
pub(crate) const DECIDED: usize = 1;
const CHANGES: usize = 2;
const ID_LEN: usize = 3;
const CHECK: usize = 4;
const WORDS: usize = 5;

/// A list, and where it is.
#[derive(Debug)]
pub(crate) struct Intentions {
    pub place: u64,
    pub global_id: Vec<u8>,
    /// Sorted.
    pub changes: Vec<Change>,
}

impl Intentions {
    /// The words of a list.
    pub fn encode(next: u64, changes: &[Change], global_id: &[u8]) -> Vec<u64> {
        let mut words = vec![next, 0, changes.len() as u64, global_id.len() as u64, 0];
        words.extend(changes.iter().map(|change| change.0));
        words.extend(global_id.chunks(8).map(|chunk| {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(bytes)
        }));
        words[CHECK] = check(&words);
        words
    }

    /// Nothing if it was overwritten. There may be more words than it takes.
    pub fn decode(place: u64, words: &[u64]) -> Option<Intentions> {
        let (changes, id_len) =
            (usize::try_from(*words.get(CHANGES)?).ok()?, usize::try_from(*words.get(ID_LEN)?).ok()?);
        let id_at = changes.checked_add(WORDS)?;
        let words = words.get(..id_at.checked_add(id_len.div_ceil(8))?)?;
        let changes = words[WORDS..id_at].iter().map(|word| Change(*word)).collect();
        let mut global_id: Vec<u8> = words[id_at..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        global_id.truncate(id_len);
        (words[CHECK] == check(words)).then_some(Intentions { place, global_id, changes })
    }
}

fn check(words: &[u64]) -> u64 {
    meta::check_of(words[CHANGES..CHECK].iter().chain(&words[WORDS..]).copied())
}
