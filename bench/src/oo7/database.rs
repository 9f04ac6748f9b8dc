//! The database of OO7 (Carey, DeWitt, Naughton, SIGMOD 1993): one module of assemblies in seven levels, whose
//! leaves use composite parts, each a graph of atomic parts with a document. References are offsets in the data.
//!
//! Its size is set, as McNamee does (section 6.2.1), by the number of atomic parts in a composite one.

#![expect(missing_docs, reason = "fields are called as in the published benchmark, which says what they are")]

use crate::report::Random;

/// Levels of assemblies; parts that each has, and composite parts that each at the bottom uses.
pub const LEVELS: u32 = 7;
pub const FAN: usize = 3;
/// Composite parts.
pub const COMPOSITES: usize = 500;
/// Places for composite parts that are inserted.
pub const SPARE: usize = 5;
/// Connections that begin at an atomic part.
pub const CONNECTIONS: usize = 3;
/// Dates that parts may have: the index has a list for each.
pub const DATES: usize = 1000;
/// Bytes of a document.
pub const DOCUMENT: usize = 2000;

/// A reference: an offset in the data; 0 is none.
pub type Ref = u64;

/// The root, at 64 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Module {
    pub root: Ref,
    pub composites: [Ref; COMPOSITES + SPARE],
    /// Atomic parts by their numbers: one place for each.
    pub ids: Ref,
    /// The first part of each date.
    pub dates: [Ref; DATES],
    /// Atomic parts of a composite one.
    pub parts: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Assembly {
    pub id: u32,
    pub level: u32,
    pub date: u32,
    pub kind: [u8; 12],
    pub parts: [Ref; FAN],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Composite {
    pub id: u32,
    pub date: u32,
    /// The first of its atomic parts, which stand one behind the other.
    pub root: Ref,
    pub document: Ref,
    pub used: u32,
    pub kind: [u8; 12],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Atomic {
    pub id: u32,
    pub date: u32,
    pub x: i32,
    pub y: i32,
    pub kind: [u8; 16],
    pub composite: Ref,
    pub to: [Ref; CONNECTIONS],
    /// The list of its date.
    pub next: Ref,
    pub before: Ref,
    pub filling: [u8; 48],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Connection {
    pub to: Ref,
    pub from: Ref,
    pub length: u32,
    pub kind: [u8; 44],
}

const _: () = assert!(size_of::<Atomic>() == 128 && size_of::<Connection>() == 64);

/// Where the module is.
pub const MODULE: Ref = 64;
const PER_ATOMIC: usize = size_of::<Atomic>() + CONNECTIONS * size_of::<Connection>();

/// Where a composite part and what is of it stand, from a number on.
struct Place {
    composite: usize,
    document: usize,
    atomics: usize,
    connections: usize,
}

/// How large everything is.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Atomic parts of a composite one.
    pub parts: usize,
}

impl Shape {
    /// One that takes about so many bytes.
    pub fn of(bytes: usize) -> Shape {
        Shape { parts: (bytes / ((COMPOSITES + SPARE) * (PER_ATOMIC + 8))).max(4) }
    }

    fn assemblies() -> usize {
        (0..LEVELS).map(|level| FAN.pow(level)).sum()
    }

    fn first_assembly() -> usize {
        (MODULE as usize + size_of::<Module>()).next_multiple_of(64)
    }

    fn ids() -> usize {
        (Shape::first_assembly() + Shape::assemblies() * size_of::<Assembly>()).next_multiple_of(64)
    }

    fn first_composite(self) -> usize {
        (Shape::ids() + (COMPOSITES + SPARE) * self.parts * 8).next_multiple_of(4096)
    }

    fn composite_bytes(self) -> usize {
        (64 + 2048 + self.parts * PER_ATOMIC).next_multiple_of(64)
    }

    fn place(self, number: usize) -> Place {
        let composite = self.first_composite() + number * self.composite_bytes();
        let document = composite + 64;
        let atomics = document + 2048;
        Place { composite, document, atomics, connections: atomics + self.parts * size_of::<Atomic>() }
    }

    /// All of it, in whole pages.
    pub fn bytes(self) -> usize {
        self.place(COMPOSITES + SPARE).composite.next_multiple_of(64 << 10)
    }

    /// A database in memory, always the same one.
    pub fn build(self) -> Vec<u64> {
        let mut data = vec![0u64; self.bytes() / 8];
        let mut random = Random(0x007_007_007);
        let db = super::traversals::Memory { base: data.as_mut_ptr().cast() };
        let mut declare = |_: Ref, _: usize| {};
        db.at::<Module>(MODULE).ids = Shape::ids() as Ref;
        db.at::<Module>(MODULE).parts = self.parts as u64;
        for number in 0..COMPOSITES {
            self.insert(&db, number, &mut random, &mut declare);
        }
        let mut next = Shape::first_assembly();
        db.at::<Module>(MODULE).root = assembly(&db, 1, &mut next, &mut random);
        data
    }

    /// Where all objects of a new database are, and how long they are, but for the table of numbers.
    pub fn objects(self) -> impl Iterator<Item = (Ref, usize)> {
        let assemblies = (0..Shape::assemblies())
            .map(|i| (Shape::first_assembly() + i * size_of::<Assembly>(), size_of::<Assembly>()));
        let composites = (0..COMPOSITES).flat_map(move |number| {
            let place = self.place(number);
            let many = |at: usize, count: usize, len: usize| (0..count).map(move |i| (at + i * len, len));
            many(place.composite, 1, size_of::<Composite>())
                .chain(many(place.document, 1, DOCUMENT))
                .chain(many(place.atomics, self.parts, size_of::<Atomic>()))
                .chain(many(place.connections, self.parts * CONNECTIONS, size_of::<Connection>()))
        });
        let module = std::iter::once((MODULE as usize, size_of::<Module>()));
        module.chain(assemblies).chain(composites).map(|(at, len)| (at as Ref, len))
    }

    /// Makes a composite part in its place.
    pub(super) fn insert(
        self,
        db: &super::traversals::Memory,
        number: usize,
        random: &mut Random,
        declare: &mut dyn FnMut(Ref, usize),
    ) {
        let place = self.place(number);
        declare(place.composite as Ref, self.composite_bytes());
        let date = random.below(DATES) as u32;
        *db.at::<Composite>(place.composite as Ref) = Composite {
            id: number as u32,
            date,
            root: place.atomics as Ref,
            document: place.document as Ref,
            used: 0,
            kind: *b"type001\0\0\0\0\0",
        };
        let text = format!("I am the documentation for composite part #{number}\n");
        let document = db.at::<[u8; DOCUMENT]>(place.document as Ref);
        document.iter_mut().zip(text.bytes().cycle()).for_each(|(byte, of)| *byte = of);
        for i in 0..self.parts {
            let (at, id) = ((place.atomics + i * size_of::<Atomic>()) as Ref, number * self.parts + i);
            let mut to = [0; CONNECTIONS];
            for (j, to) in to.iter_mut().enumerate() {
                // The first ones make a ring, so that all can be reached.
                let other = if j == 0 { (i + 1) % self.parts } else { random.below(self.parts) };
                *to = (place.connections + (i * CONNECTIONS + j) * size_of::<Connection>()) as Ref;
                *db.at::<Connection>(*to) = Connection {
                    to: (place.atomics + other * size_of::<Atomic>()) as Ref,
                    from: at,
                    length: random.below(1000) as u32,
                    kind: [b'c'; 44],
                };
            }
            *db.at::<Atomic>(at) = Atomic {
                id: id as u32,
                date: random.below(DATES) as u32,
                x: random.below(1 << 20) as i32,
                y: random.below(1 << 20) as i32,
                kind: *b"type002\0\0\0\0\0\0\0\0\0",
                composite: place.composite as Ref,
                to,
                next: 0,
                before: 0,
                filling: [0; 48],
            };
            let of_id = db.at::<Module>(MODULE).ids + id as Ref * 8;
            declare(of_id, 8);
            *db.at::<Ref>(of_id) = at;
            db.link(at, declare);
        }
        let entry = MODULE + (std::mem::offset_of!(Module, composites) + number * 8) as Ref;
        declare(entry, 8);
        *db.at::<Ref>(entry) = place.composite as Ref;
    }
}

/// An assembly with all that is below it.
fn assembly(db: &super::traversals::Memory, level: u32, next: &mut usize, random: &mut Random) -> Ref {
    let at = *next as Ref;
    *next += size_of::<Assembly>();
    let mut parts = [0; FAN];
    for part in &mut parts {
        *part = match level {
            LEVELS => {
                let part = db.at::<Module>(MODULE).composites[random.below(COMPOSITES)];
                db.at::<Composite>(part).used += 1;
                part
            }
            _ => assembly(db, level + 1, next, random),
        };
    }
    let (id, date) = (*next as u32, random.below(DATES) as u32);
    *db.at::<Assembly>(at) = Assembly { id, level, date, kind: *b"type003\0\0\0\0\0", parts };
    at
}
