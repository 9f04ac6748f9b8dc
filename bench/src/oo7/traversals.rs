//! OO7's traversals, queries and structural changes. `declare` is told what is about to be changed.

use super::database::*;
use crate::report::Random;
use clap::ValueEnum;
use std::mem::offset_of;

/// What is done to the database.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum Traversal {
    /// Visits all atomic parts of all composite parts that base assemblies use, depth first.
    T1,
    /// T1, and changes one atomic part of each composite one.
    T2a,
    /// T1, and changes each atomic part.
    T2b,
    /// T1, and changes each atomic part four times.
    T2c,
    /// T2b of the date, which is indexed.
    T3b,
    /// Changes the document of each composite part.
    T5,
    /// Visits the first atomic part of each composite one.
    T6,
    /// Ten atomic parts by their numbers.
    Q1,
    /// Atomic parts of the newest ten percent of dates, by the index.
    Q3,
    /// All atomic parts.
    Q7,
    /// Five composite parts inserted and deleted again.
    S,
    /// One frame: all that render does.
    Frame,
}

impl Traversal {
    /// Whether it changes something.
    pub fn changes(self) -> bool {
        !matches!(
            self,
            Traversal::T1 | Traversal::T6 | Traversal::Q1 | Traversal::Q3 | Traversal::Q7 | Traversal::Frame
        )
    }
}

/// The database in memory.
pub struct Memory {
    pub base: *mut u8,
}

type Declare<'d> = &'d mut dyn FnMut(Ref, usize);

impl Memory {
    /// What stands there. The reference is used at once, and no other one meanwhile.
    #[expect(clippy::mut_from_ref)]
    pub fn at<T>(&self, at: Ref) -> &mut T {
        // SAFETY: references are of things of this kind in the data, which this thread alone uses, and each is
        // gone before the next one to the same thing is made.
        unsafe { &mut *self.base.add(at as usize).cast::<T>() }
    }

    /// Puts a part into the list of its date.
    pub fn link(&self, at: Ref, declare: Declare<'_>) {
        let list =
            MODULE + (offset_of!(Module, dates) + self.at::<Atomic>(at).date as usize % DATES * 8) as Ref;
        let first = *self.at::<Ref>(list);
        declare(at + offset_of!(Atomic, next) as Ref, 16);
        (self.at::<Atomic>(at).next, self.at::<Atomic>(at).before) = (first, 0);
        if first != 0 {
            declare(first + offset_of!(Atomic, before) as Ref, 8);
            self.at::<Atomic>(first).before = at;
        }
        declare(list, 8);
        *self.at::<Ref>(list) = at;
    }

    /// Takes it out.
    fn unlink(&self, at: Ref, declare: Declare<'_>) {
        let (next, before) = (self.at::<Atomic>(at).next, self.at::<Atomic>(at).before);
        let place = match before {
            0 => {
                MODULE + (offset_of!(Module, dates) + self.at::<Atomic>(at).date as usize % DATES * 8) as Ref
            }
            _ => before + offset_of!(Atomic, next) as Ref,
        };
        declare(place, 8);
        *self.at::<Ref>(place) = next;
        if next != 0 {
            declare(next + offset_of!(Atomic, before) as Ref, 8);
            self.at::<Atomic>(next).before = before;
        }
    }

    /// Does a traversal; how many things it has visited, with something of each, so that nothing is left out.
    pub fn traverse(&self, what: Traversal, declare: Declare<'_>) -> u64 {
        let shape = Shape { parts: self.at::<Module>(MODULE).parts as usize };
        let mut random = Random(77);
        match what {
            Traversal::Q1 => (0..10)
                .map(|_| {
                    let id = random.below(COMPOSITES * shape.parts) as Ref;
                    let part = *self.at::<Ref>(self.at::<Module>(MODULE).ids + id * 8);
                    self.at::<Atomic>(part).x as u64
                })
                .fold(0, u64::wrapping_add),
            Traversal::Q3 => (DATES - DATES / 10..DATES).map(|date| self.of_date(date)).sum(),
            Traversal::Q7 => (0..(COMPOSITES * shape.parts) as Ref)
                .map(|id| {
                    let part = *self.at::<Ref>(self.at::<Module>(MODULE).ids + id * 8);
                    self.at::<Atomic>(part).x as u64
                })
                .fold(0, u64::wrapping_add),
            Traversal::S => {
                for number in COMPOSITES..COMPOSITES + SPARE {
                    shape.insert(self, number, &mut random, declare);
                }
                (COMPOSITES..COMPOSITES + SPARE).map(|number| self.delete(shape, number, declare)).sum()
            }
            _ => {
                let mut visit =
                    Visit { of: self, what, seen: vec![0; shape.parts], number: 0, stack: Vec::new() };
                visit.assembly(self.at::<Module>(MODULE).root, declare)
            }
        }
    }

    fn of_date(&self, date: usize) -> u64 {
        let (mut part, mut count) = (self.at::<Module>(MODULE).dates[date], 0);
        while part != 0 {
            count += 1;
            part = self.at::<Atomic>(part).next;
        }
        count
    }

    fn delete(&self, shape: Shape, number: usize, declare: Declare<'_>) -> u64 {
        let entry = MODULE + (offset_of!(Module, composites) + number * 8) as Ref;
        let root = self.at::<Composite>(*self.at::<Ref>(entry)).root;
        for i in 0..shape.parts {
            let part = root + (i * size_of::<Atomic>()) as Ref;
            let id = self.at::<Module>(MODULE).ids + Ref::from(self.at::<Atomic>(part).id) * 8;
            self.unlink(part, declare);
            declare(id, 8);
            *self.at::<Ref>(id) = 0;
        }
        declare(entry, 8);
        *self.at::<Ref>(entry) = 0;
        shape.parts as u64
    }
}

struct Visit<'m> {
    of: &'m Memory,
    what: Traversal,
    /// The number of the visit in which each atomic part of a composite one was seen last.
    seen: Vec<u32>,
    number: u32,
    stack: Vec<Ref>,
}

impl Visit<'_> {
    fn assembly(&mut self, at: Ref, declare: Declare<'_>) -> u64 {
        let (level, parts) = (self.of.at::<Assembly>(at).level, self.of.at::<Assembly>(at).parts);
        let each =
            |part| if level == LEVELS { self.composite(part, declare) } else { self.assembly(part, declare) };
        parts.into_iter().map(each).fold(0, u64::wrapping_add)
    }

    fn composite(&mut self, at: Ref, declare: Declare<'_>) -> u64 {
        let (root, document) = (self.of.at::<Composite>(at).root, self.of.at::<Composite>(at).document);
        match self.what {
            Traversal::T5 => {
                declare(document, DOCUMENT);
                let text = self.of.at::<[u8; DOCUMENT]>(document);
                let new = if text.starts_with(b"I am") { b"This" } else { b"I am" };
                text[..4].copy_from_slice(new);
                text[DOCUMENT - 4..].copy_from_slice(new);
                1
            }
            Traversal::T6 => self.of.at::<Atomic>(root).x as u64,
            _ => self.graph(root, declare),
        }
    }

    /// Depth first, from the first part.
    fn graph(&mut self, root: Ref, declare: Declare<'_>) -> u64 {
        self.number += 1;
        self.stack.push(root);
        let mut sum = 0u64;
        while let Some(at) = self.stack.pop() {
            let index = (at - root) as usize / size_of::<Atomic>();
            if std::mem::replace(&mut self.seen[index], self.number) == self.number {
                continue;
            }
            let (x, to) = (self.of.at::<Atomic>(at).x, self.of.at::<Atomic>(at).to);
            sum = sum.wrapping_add(x as u64);
            match self.what {
                Traversal::T2a if at == root => self.swap(at, declare),
                Traversal::T2b => self.swap(at, declare),
                Traversal::T2c => (0..4).for_each(|_| self.swap(at, declare)),
                Traversal::T3b => {
                    self.of.unlink(at, declare);
                    declare(at, size_of::<Atomic>());
                    self.of.at::<Atomic>(at).date = (self.of.at::<Atomic>(at).date + 1) % DATES as u32;
                    self.of.link(at, declare);
                }
                _ => {}
            }
            self.stack.extend(to.iter().rev().map(|connection| self.of.at::<Connection>(*connection).to));
        }
        sum
    }

    fn swap(&self, at: Ref, declare: Declare<'_>) {
        declare(at + offset_of!(Atomic, x) as Ref, 8);
        let part = self.of.at::<Atomic>(at);
        (part.x, part.y) = (part.y, part.x.wrapping_add(1));
    }
}
