//! What happens seldom is told by events.

use caliburn::{Class, Mode, Options, Store};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the messages and the names of spans.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("caliburn")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.0.lock().unwrap().push(format!("span {}", span.metadata().name()));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn openings_truncations_and_growth_are_told_and_commits_are_not() {
    let heard = Heard::default();
    let dir = tempfile::tempdir().unwrap();
    let has = |text: &str| heard.0.lock().unwrap().iter().any(|line| line.contains(text));
    tracing::subscriber::with_default(heard.clone(), || {
        let mut options = Options::new();
        let store: Store =
            options.create(true).log_bytes(1 << 20).background(false).open(dir.path().join("s")).unwrap();
        assert!(has("span open") && has("step=\"scan_log\"") && has("message=recovered"), "{:?}", heard.0);
        let segment = store.create_segment("data", 1 << 16).unwrap();
        let region = segment.map_all().unwrap();
        let before = heard.0.lock().unwrap().len();
        for number in 0..100u64 {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&region, 0, &number).unwrap();
            tx.commit(Class::Process).unwrap();
        }
        assert_eq!(heard.0.lock().unwrap().len(), before, "{:?}", heard.0);
        store.truncate().unwrap();
        segment.grow(1 << 17).unwrap();
        store.relocate_log(Options::new().log_bytes(2 << 20)).unwrap();
        assert!(has("message=truncated") && has("a segment grew") && has("another size"), "{:?}", heard.0);
    });
}
