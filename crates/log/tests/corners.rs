//! Every format at the corners of its fields: what has a meaning of its own (none, unknown, the end) is equal to no
//! value that can be written, and all of these come back as they were written.

use caliburn_log::archive::{self, Part};
use caliburn_log::dump::{Head, Piece, Reader, Writer};
use caliburn_log::format::{
    self, ALIGN, BLOCK, CHUNK_HEAD, COUNT_MAX, GenerationSlot, LASTING, LOG_BYTES_MIN, LOG_MAGIC, LSN_MAX,
    Lsn, Newer, ORDER_UNIT, STAGE_BOOT, STAGE_CACHES, STAGE_CHECKPOINT, STAGE_CURRENT, STAGE_FRONTIERS,
    STAGE_MAGIC, STAMP_STEP, STAMPS, STATUS_AT, SUMS_WAITING, SUMS_WITHIN, SegmentId, StageHeader,
    StagedHeader, Stamp, StampedSum, UNDO_COUNT, UNDO_DATA, UNDO_HEAD, UNDO_MAGIC, UndoStatus, WITHIN_BOOT,
};
use caliburn_log::image_status;
use caliburn_log::images::{self, ImageLog, Page};
use caliburn_log::log::{self, Log};
use caliburn_log::order::{self, Order};
use caliburn_log::prepared::{self, MARK, NEW, Prepared, is_new};
use caliburn_log::record::{
    self, Decoded, GLOBAL_ID_MAX, Kind, Range, Ranges, RecordPosition, decode, encode, prefix, push_range,
};
use caliburn_log::scan;
use caliburn_log::sealed::Seal;
use caliburn_log::staged_tail::{self, CHUNKS, STAGE_BYTES_MAX, StagedTail};
use caliburn_log::status_pages;
use caliburn_log::uncommitted::{self, CHUNK_BYTES, Found, Uncommitted, UndoError};
use caliburn_os::files::Files;
use caliburn_os::host::Id;
use caliburn_os::medium::{Media, Medium};
use caliburn_os::witness::{Seen, Witnesses};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

const STORE: Id = [7; 16];
const BOOT: Id = [9; 16];
const LAST: u64 = LSN_MAX / ALIGN as u64 * ALIGN as u64;
/// More segments than any catalog names, and the first of them.
const SEGMENTS: [u32; 3] = [0, 1, NEW - 1];
/// Contents that may look like something else.
const CONTENTS: [&[u8]; 5] = [&[0], &[0; 8], &[0xFF; 8], &[0; 24], &[0xFF; 9]];

/// The boot that the files tell of.
fn seen() -> Seen {
    Seen { now: Witnesses { boot: Some(BOOT), others: None }, ..Seen::default() }
}

fn medium(dir: &tempfile::TempDir) -> Arc<dyn Medium> {
    Files.create(&dir.path().join("medium")).unwrap()
}

#[test]
fn records() {
    // The longest distance to the forced log that a trailer can tell, and those beside it.
    let far = u64::from(u32::MAX) * ALIGN as u64;
    let places = [
        (0, 0),
        (8, 0),
        (far - 8, 0),
        (far, 0),
        (far + 8, 8),
        (LAST, 0),
        (LAST, LAST),
        (LAST, LAST - far + 8),
    ];
    let ids: [&[u8]; 5] = [&[0], &[0; 8], &[0xFF; 8], &[0; 9], &[0xFF; GLOBAL_ID_MAX]];
    let kinds = [Kind::Commit, Kind::Group, Kind::Prepare, Kind::Resolve, Kind::Forget];
    for (kind, (lsn, forced)) in kinds.into_iter().flat_map(|kind| places.map(|place| (kind, place))) {
        for (incarnation, time) in [(0, 0), (1, u64::MAX), (u32::MAX, 0)] {
            for (global_id, count) in ids.into_iter().zip([0, 1, u64::MAX, 0, 1]) {
                let mut body = Vec::new();
                if kind != Kind::Forget {
                    for (segment, content) in SEGMENTS.into_iter().flat_map(|s| CONTENTS.map(|c| (s, c))) {
                        push_range(&mut body, SegmentId(segment), 0, content);
                        push_range(&mut body, SegmentId(segment), u64::MAX - 8, content);
                    }
                }
                let at = RecordPosition { lsn: Lsn(lsn), forced: Lsn(forced), incarnation, time };
                let mut bytes = Vec::new();
                encode(&mut bytes, kind, at, &prefix(kind, count, global_id), &body);
                let Decoded::Valid(found) = decode(&bytes, Lsn(lsn), incarnation, 1 << 20) else {
                    panic!("{kind:?} {at:?} is none");
                };
                assert_eq!((found.kind, found.time, found.incarnation), (kind, time, incarnation));
                assert_eq!((found.body(), found.len()), (&body[..], bytes.len() as u64));
                // Where it cannot be told, less is said than was forced, never more.
                let told = if lsn - forced >= far { 0 } else { forced };
                assert_eq!(found.forced, Lsn(told), "{at:?}");
                if matches!(kind, Kind::Prepare | Kind::Resolve | Kind::Forget) {
                    assert_eq!(found.global_id, global_id);
                } else if kind == Kind::Group {
                    assert_eq!(found.transactions, count);
                }
            }
        }
    }
    for len in (0..=4096).step_by(8) {
        let zeros = vec![0; len];
        assert!(!matches!(decode(&zeros, Lsn(0), 0, 1 << 20), Decoded::Valid(_)), "{len} zeros are a record");
    }
}

#[test]
fn old_and_new_values_and_marks() {
    // A catalog is no longer than this, and a name has a byte: segments are never taken away.
    assert!((64 << 20) / size_of::<format::CatalogEntry>() < NEW as usize);
    let mut body = Vec::new();
    for (segment, content) in SEGMENTS.into_iter().flat_map(|s| CONTENTS.map(|c| (s, c))) {
        assert!(!is_new(SegmentId(segment)) && SegmentId(segment | NEW) != MARK || segment == NEW - 1);
        push_range(&mut body, SegmentId(segment), 0, content);
    }
    for (time, global_id) in [(0, vec![0]), (u64::MAX, vec![0xFF; GLOBAL_ID_MAX]), (1, vec![0; 8])] {
        let mut run = body.clone();
        for range in Ranges::of(&body).filter(|range| range.segment.0 < NEW - 1) {
            push_range(&mut run, SegmentId(range.segment.0 | NEW), range.offset, range.bytes);
        }
        push_range(&mut run, MARK, time, &global_id);
        let mut found = Prepared { global_id: Vec::new(), time: 0, body: Vec::new() };
        Ranges::of(&run).for_each(|range| found.take(&range));
        let new = Ranges::of(&body).filter(|range| range.segment.0 < NEW - 1).count();
        assert_eq!(Ranges::of(&found.body).count(), new, "old values are none of them");
        assert_eq!((found.time, &found.global_id), (time, &global_id));
        let empty = Prepared { global_id: b"empty".to_vec(), time, body: Vec::new() };
        let both = [found, empty];
        assert_eq!(prepared::decode(&prepared::encode(STORE, &both), &STORE).unwrap(), both);
    }
}

#[test]
fn sealed_ranges() {
    let (numbers, generations) = ([0, 1, u32::MAX], [0, 1, COUNT_MAX - 1]);
    let seals: Vec<Seal> = generations
        .into_iter()
        .flat_map(|generation| numbers.map(|first| (generation, first)))
        .flat_map(|(generation, first)| numbers.map(|ordinal| (generation, first, ordinal)))
        .flat_map(|(generation, first, ordinal)| {
            numbers.map(|turn| Seal::new(generation, first, ordinal, turn))
        })
        .collect();
    for (i, seal) in seals.iter().enumerate() {
        assert_eq!(Seal::from_word(seal.word()), *seal);
        assert_eq!(seal.ranges(&[0; 4096]).count(), 0, "zeros are a range");
        let (mut bytes, mut ranges) = (Vec::new(), 0);
        for (segment, content) in SEGMENTS.into_iter().flat_map(|s| CONTENTS.map(|c| (s, c))) {
            let from = bytes.len();
            push_range(&mut bytes, SegmentId(segment), 0, content);
            let word = seal.of(&bytes[from..]);
            bytes.extend(word.to_ne_bytes());
            ranges += 1;
        }
        for (j, other) in seals.iter().enumerate() {
            assert_eq!(other.ranges(&bytes).count(), if i == j { ranges } else { 0 }, "{i} {j}");
        }
    }
}

#[test]
fn undo_logs() {
    let dir = tempfile::tempdir().unwrap();
    let medium = medium(&dir);
    for (turn, number) in [0, 1, u32::MAX].into_iter().flat_map(|turn| [0, 1, 3].map(|number| (turn, number)))
    {
        for (sealed, generation) in [(false, 1), (true, 1), (true, COUNT_MAX - 1)] {
            medium.set_len(0).unwrap();
            uncommitted::create(&*medium, STORE, &seen().now, 1).unwrap();
            let status = UndoStatus {
                boot: BOOT,
                generation: generation.into(),
                chunk_bytes: (CHUNK_BYTES as u32).into(),
                sealed: u32::from(sealed).into(),
                ..UndoStatus::new_zeroed()
            };
            status_pages::put(&*medium, status.as_bytes(), UNDO_MAGIC, STORE).unwrap();
            medium.set_len(UNDO_DATA + 5 * CHUNK_BYTES as u64).unwrap();
            medium.write_at(&5u64.to_ne_bytes(), UNDO_COUNT).unwrap();
            // The first chunk, and a further one before or behind it. What is saved is zeros of the first segment.
            let further = (number + 2) % 5;
            for (chunk, ordinal) in [(number, 0), (further, 1u32)] {
                let mut ranges = Vec::new();
                push_range(&mut ranges, SegmentId(0), u64::from(ordinal) * 8, &[0; 8]);
                let len = if sealed { 0 } else { ranges.len() as u64 };
                if sealed {
                    let seal = Seal::new(generation, number, ordinal, turn).of(&ranges);
                    ranges.extend(seal.to_ne_bytes());
                }
                let words = match ordinal {
                    0 => [u64::from(turn) << 32 | len, 0, 0],
                    _ => [0, u64::from(number + 1) << 32 | u64::from(turn), u64::from(ordinal) << 32 | len],
                };
                let at = UNDO_DATA + u64::from(chunk) * CHUNK_BYTES as u64;
                medium.write_at(words.as_bytes(), at).unwrap();
                medium.write_at(&ranges, at + UNDO_HEAD as u64).unwrap();
            }
            let found = Found::read(&*medium, &STORE, &seen(), &mut |_, _| ()).unwrap();
            let newest_first = |log: &Uncommitted| {
                let mut offsets = Vec::new();
                let each = |range: Range<'_>| {
                    offsets.push(range.offset);
                    Ok::<(), UndoError>(())
                };
                found.newest_first(&*medium, log, each).map(|()| offsets).unwrap()
            };
            let offsets: Vec<Vec<u64>> = found.uncommitted.iter().map(newest_first).collect();
            assert_eq!(offsets, [[8, 0]], "transaction {turn} in chunk {number}, sealed: {sealed}");
            // The next transaction of the run has committed, or begun: nothing is left of this one.
            let next = u64::from(turn.wrapping_add(1)) << 32;
            medium.write_at(&next.to_ne_bytes(), UNDO_DATA + u64::from(number) * CHUNK_BYTES as u64).unwrap();
            let found = Found::read(&*medium, &STORE, &seen(), &mut |_, _| ()).unwrap();
            assert!(found.uncommitted.is_empty(), "transaction {turn} in chunk {number}, sealed: {sealed}");
        }
    }
}

#[test]
fn sums() {
    assert!(format::unit_sum(&[0; 4096]) > 0);
    // Bytes whose CRC-32C is 0 have a sum, too.
    assert_eq!(crc_zero().map(|bytes| format::unit_sum(&bytes)), Some(1));
    for (sum, before) in [1, 2, u32::MAX].into_iter().flat_map(|sum| [0, 8, LAST].map(|lsn| (sum, Lsn(lsn))))
    {
        let entry = StampedSum::new(sum, before);
        assert!(entry.is_sound() && entry.as_bytes() != [0; 16]);
        assert_eq!((entry.sum.get(), entry.before.get()), (sum, before.0));
    }
    assert!(StampedSum::new_zeroed().is_sound());
}

/// Four bytes whose CRC-32C is 0.
fn crc_zero() -> Option<Vec<u8>> {
    // The CRC of four bytes takes each value once, and is linear: the four bytes are found bit by bit.
    let of = |bytes: u32| crc32c(&bytes.to_le_bytes());
    let base = of(0);
    let (mut rows, mut wanted, mut found) = (Vec::new(), base, 0u32);
    for bit in 0..32 {
        let (mut value, mut from) = (of(1 << bit) ^ base, 1u32 << bit);
        for (other, of_other) in &rows {
            if value ^ other < value {
                (value, from) = (value ^ other, from ^ of_other);
            }
        }
        rows.push((value, from));
        rows.sort_unstable_by(|a, b| b.cmp(a));
    }
    for (value, from) in rows {
        if wanted ^ value < wanted {
            (wanted, found) = (wanted ^ value, found ^ from);
        }
    }
    let bytes = found.to_le_bytes().to_vec();
    (crc32c(&bytes) == 0).then_some(bytes)
}

/// As [`record::append_crc`] has it.
fn crc32c(bytes: &[u8]) -> u32 {
    record::append_crc(0, bytes)
}

#[test]
fn status_pages_that_were_written_often() {
    let dir = tempfile::tempdir().unwrap();
    let medium = medium(&dir);
    medium.set_len(2 * BLOCK as u64).unwrap();
    for generation in [0, 1, COUNT_MAX - 2, COUNT_MAX - 1, COUNT_MAX, u64::MAX] {
        STATUS_AT.into_iter().for_each(|at| medium.write_at(&[0; BLOCK], at).unwrap());
        let status = UndoStatus { generation: generation.into(), ..UndoStatus::new_zeroed() };
        status_pages::put(&*medium, status.as_bytes(), UNDO_MAGIC, STORE).unwrap();
        let found = uncommitted::read_status(&*medium, &STORE).map(|status| status.generation.get());
        assert_eq!(found.ok(), (generation < COUNT_MAX).then_some(generation));
    }
}

#[test]
fn generations() {
    for generation in [0, 1, COUNT_MAX - 1, u64::MAX] {
        let dir = tempfile::tempdir().unwrap();
        let medium = medium(&dir);
        log::create(&*medium, STORE, LOG_BYTES_MIN, generation).unwrap();
        let status = log::read_status(&*medium, Some(&STORE)).unwrap();
        assert_eq!(log::said(&*medium, &status).generation, generation);
        medium.set_len(0).unwrap();
        uncommitted::create(&*medium, STORE, &seen().now, generation).unwrap();
        let status = uncommitted::read_status(&*medium, &STORE).unwrap();
        assert_eq!(uncommitted::said(&status).generation, generation);
        medium.set_len(0).unwrap();
        images::create(&*medium, STORE, generation).unwrap();
        let status = image_status::read_status(&*medium, &STORE).unwrap();
        assert_eq!(image_status::said(&status).generation, generation);
        for id in SEGMENTS.into_iter().chain([u32::MAX]).map(SegmentId).filter(|_| generation > 0) {
            let stamp = Stamp::encode(STORE, id, generation);
            let mut both = [0; STAMPS];
            both[STAMP_STEP..].copy_from_slice(&stamp);
            assert_eq!(Stamp::newer(&both, &STORE, id).unwrap(), Newer { generation, other: 0, torn: false });
            for kind in [LASTING, WITHIN_BOOT] {
                let slot = GenerationSlot::new(GenerationSlot::of_segment(id), generation, kind);
                assert_eq!(slot.read(GenerationSlot::of_segment(id)), Some((generation, kind)));
                assert_eq!(slot.read(0), None);
            }
        }
    }
    assert_eq!(Stamp::newer(&[0; STAMPS], &STORE, SegmentId(0)).unwrap(), Newer::default());
    assert_eq!(GenerationSlot::new_zeroed().read(0), Some((0, 0)));
}

#[test]
fn a_log_that_was_opened_as_often_as_can_be_is_still_read() {
    let dir = tempfile::tempdir().unwrap();
    let medium = medium(&dir);
    log::create(&*medium, STORE, LOG_BYTES_MIN, 1).unwrap();
    let mut status = log::read_status(&*medium, Some(&STORE)).unwrap();
    status.incarnation = (u32::MAX - 1).into();
    status.generation += 1;
    status_pages::put(&*medium, status.as_bytes(), LOG_MAGIC, STORE).unwrap();
    let open = || {
        let status = log::read_status(&*medium, Some(&STORE)).unwrap();
        let scanned = scan::scan(&*medium, &status, None, |_| {}).unwrap();
        Log::open(medium.clone(), STORE, status, &scanned, ([0; 2], 1))
    };
    assert_eq!(open().unwrap().incarnation(), u32::MAX);
    let refused = open().map(drop).unwrap_err().to_string();
    assert!(refused.contains("as often as a log can be"), "{refused}");
    assert_eq!(log::read_status(&*medium, Some(&STORE)).unwrap().incarnation.get(), u32::MAX);
}

#[test]
fn stages() {
    let dir = tempfile::tempdir().unwrap();
    let medium = medium(&dir);
    let chunk_bytes = BLOCK as u64;
    assert!(chunk_bytes * CHUNKS as u64 <= STAGE_BYTES_MAX);
    for (current, stamp, end) in [(0, 1, 0), (1, 1, LAST), (0, COUNT_MAX - 1, 8), (1, COUNT_MAX - 1, LAST)] {
        for (before, caches) in [(0, 0), (0, u64::MAX), (8, 0), (LAST, u64::MAX)] {
            let mut bytes = vec![0; BLOCK + CHUNKS * BLOCK];
            let header = StageHeader {
                boot: BOOT,
                chunk_bytes: chunk_bytes.into(),
                chunks: (CHUNKS as u64).into(),
                ..StageHeader::new_zeroed()
            };
            bytes[..size_of::<StageHeader>()].copy_from_slice(header.as_bytes());
            format::seal(&mut bytes[..size_of::<StageHeader>()], STAGE_MAGIC, STORE);
            bytes[STAGE_BOOT..][..16].copy_from_slice(&BOOT);
            let frontier = STAGE_FRONTIERS[current];
            let words = [(STAGE_CURRENT, current as u64), (frontier, stamp), (frontier + 8, end)];
            for (at, word) in words.into_iter().chain([(STAGE_CHECKPOINT, before), (STAGE_CACHES, caches)]) {
                bytes[at..at + 8].copy_from_slice(&u64::to_ne_bytes(word));
            }
            // In the last chunk: a record of the frontier's stamp that stores zeros, and one of the last stamp.
            let mut records = Vec::new();
            for stamp in [stamp, COUNT_MAX - 1] {
                let mut body = Vec::new();
                push_range(&mut body, SegmentId(0), 0, &[0; 8]);
                let head = StagedHeader { stamp: stamp.into(), len: (body.len() as u64).into() };
                records.extend_from_slice(head.as_bytes());
                records.extend(body);
            }
            let at = BLOCK + (CHUNKS - 1) * BLOCK;
            bytes[at..at + 8].copy_from_slice(&(records.len() as u64).to_ne_bytes());
            bytes[at + CHUNK_HEAD..][..records.len()].copy_from_slice(&records);
            medium.write_at(&bytes, 0).unwrap();
            staged_tail::set_generation(&*medium, stamp).unwrap();
            let found = StagedTail::read(&*medium, &STORE, &seen()).unwrap();
            let stamps: Vec<u64> = found.records.iter().map(|(stamp, _)| *stamp).collect();
            assert_eq!((stamps, found.last), (vec![stamp, COUNT_MAX - 1], COUNT_MAX - 1));
            assert_eq!((found.appended, found.generation), (Some(Lsn(end)), Some(stamp)));
            // Nothing is known where all of the log is to be replayed.
            let checkpoint = found.checkpoint.map(|found| (found.before.0, found.caches));
            assert_eq!(checkpoint, (before > 0).then_some((before, caches)));
        }
    }
}

#[test]
fn before_images() {
    let dir = tempfile::tempdir().unwrap();
    let medium = medium(&dir);
    images::create(&*medium, STORE, 1).unwrap();
    let status = image_status::read_status(&*medium, &STORE).unwrap();
    let mut log = ImageLog::open(medium.clone(), STORE, status, ([0; 2], 1), false, |_, _| Ok(())).unwrap();
    // Of a segment of 2^63 bytes the last page.
    let pages: Vec<Page> = SEGMENTS
        .into_iter()
        .flat_map(|segment| [0, 1, (1 << 51) - 1].map(|number| Page { segment: SegmentId(segment), number }))
        .collect();
    log.make_room(pages.len() as u64).unwrap();
    let len = |i: usize| [1, 4095, 4096][i % 3];
    log.append(&pages, |i, image| {
        image.fill(if i < 3 { 0 } else { 0xFF });
        Ok((len(i), images::checksum(&image[..len(i)])))
    })
    .unwrap();
    let mut found = Vec::new();
    log.each(|page, image| {
        found.push((page, image.len()));
        Ok::<_, images::ImagesError>(())
    })
    .unwrap();
    assert_eq!(found, pages.into_iter().enumerate().map(|(i, page)| (page, len(i))).collect::<Vec<_>>());

    // Sums in the status page, and beside it.
    for count in [0, 1, SUMS_WITHIN, SUMS_WITHIN + 1, SUMS_WAITING] {
        let corner = |number: usize| Page {
            segment: SegmentId(SEGMENTS[number % 3]),
            number: [number as u64, (1 << 51) - 1 - number as u64][number % 2],
        };
        let put: image_status::Sums =
            (0..count).map(|number| (corner(number), [0, 1, u32::MAX][number % 3])).collect();
        log.empty(&put).unwrap();
        let (status, mut found) =
            (image_status::read_status(&*medium, &STORE).unwrap(), image_status::Sums::new());
        image_status::each_sum(&*medium, &status, |page, sum| {
            found.insert(page, sum);
            Ok(())
        })
        .unwrap();
        assert_eq!((found.len(), found == put), (count, true));
    }
}

#[test]
fn dumps() {
    let bases = [None, Some(([1; 16], Lsn(0))), Some(([0xFF; 16], Lsn(LAST)))];
    for (id, base) in
        [None, Some([1; 16]), Some([0xFF; 16])].into_iter().flat_map(|id| bases.map(|base| (id, base)))
    {
        for (time, from) in [(0, Lsn(0)), (u64::MAX, Lsn(LAST - 8)), (1, Lsn(LAST - 8))] {
            let head = Head { store: STORE, time, from, id, base };
            let mut bytes = Vec::new();
            let mut writer = Writer::begin(&mut bytes, &head).unwrap();
            writer.catalog(&[]).unwrap();
            for segment in SEGMENTS {
                writer.data(SegmentId(segment), 0, &[0; 8]).unwrap();
                writer.data(SegmentId(segment), u64::MAX - 7, &[0xFF; 8]).unwrap();
            }
            writer.log(from, &[0; 8]).unwrap();
            writer.end(Lsn(from.0 + 8), time, time, 3).unwrap();
            let mut source = &bytes[..];
            let mut reader = Reader::begin(&mut source).unwrap();
            assert_eq!(*reader.head(), head);
            assert!(matches!(reader.read().unwrap(), Piece::Catalog([])));
            for (segment, (at, byte)) in
                SEGMENTS.into_iter().flat_map(|s| [(0, 0), (u64::MAX - 7, 0xFF)].map(|p| (s, p)))
            {
                let Piece::Data(found, offset, bytes) = reader.read().unwrap() else { panic!("no data") };
                assert_eq!((found.0, offset, bytes), (segment, at, &[byte; 8][..]));
            }
            assert!(matches!(reader.read().unwrap(), Piece::Log(lsn, _) if lsn == from));
            let Piece::End(end) = reader.read().unwrap() else { panic!("no end") };
            assert_eq!((end.lsn.get(), end.time.get(), end.last.get()), (from.0 + 8, time, time));
        }
    }
}

#[test]
fn parts_of_archives() {
    for (from, time) in [(0, 0), (0, u64::MAX), (LAST - 800, 0), (LAST - 800, u64::MAX)] {
        for catalog in [&[][..], &[0; 100], &[0xFF; 8]] {
            let mut part = Part::new(Lsn(from));
            for _ in 0..2 {
                let (lsn, mut bytes) = (part.to(), Vec::new());
                let at = RecordPosition { lsn, forced: Lsn(0), incarnation: 1, time };
                encode(&mut bytes, Kind::Commit, at, &[], &[]);
                let Decoded::Valid(record) = decode(&bytes, lsn, 0, 1000) else { panic!("invalid") };
                part.push(&record);
            }
            let bytes = part.encode(STORE, catalog);
            let parts = archive::split(&bytes).unwrap();
            assert_eq!(parts.catalog, catalog);
            let told = (
                parts.header.from.get(),
                parts.header.to.get(),
                parts.header.first.get(),
                parts.header.last.get(),
            );
            assert_eq!(told, (from, from + 80, time, time));
            assert_eq!(archive::read::<()>(parts.records, Lsn(from), |_| Ok(true)), Ok(Ok(80)));
        }
    }
}

#[test]
fn orders_of_touching() {
    let last = (1 << 28) - 1;
    let touched: Vec<(u32, u64)> = SEGMENTS.into_iter().flat_map(|s| [(s, 0), (s, last)]).collect();
    let mut order = Order::default();
    assert!(touched.iter().all(|(segment, unit)| order.touch(SegmentId(*segment), *unit)));
    let wanted: Vec<_> = touched
        .into_iter()
        .map(|(segment, unit)| (SegmentId(segment), unit * ORDER_UNIT..(unit + 1) * ORDER_UNIT))
        .collect();
    assert_eq!(order::decode(&order.encode(STORE), &STORE).unwrap(), wanted);
    assert_eq!(order::decode(&Order::default().encode(STORE), &STORE).unwrap(), []);
}
