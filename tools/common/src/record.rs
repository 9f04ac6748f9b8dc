//! Records of a log, in words.

use caliburn::Event;
use std::fmt::Write;

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// A record in words.
pub fn as_text(event: &Event, bytes: bool) -> String {
    let mut out = format!(
        "{:>12}  {}.{:06}  {:<7}",
        event.lsn,
        event.time / 1_000_000_000,
        event.time / 1000 % 1_000_000,
        event.kind
    );
    if event.transactions > 1 {
        let _ = write!(out, "  {} transactions", event.transactions);
    }
    if !event.global_id.is_empty() {
        let _ = write!(out, "  {:?}", String::from_utf8_lossy(&event.global_id));
    }
    let total: usize = event.changes.iter().map(|c| c.bytes.len()).sum();
    let _ = write!(out, "  {} ranges, {total} bytes, {} in the log", event.changes.len(), event.log_bytes);
    for change in &event.changes {
        let _ = write!(
            out,
            "\n              {} {}..{}",
            change.segment,
            change.offset,
            change.offset + change.bytes.len() as u64
        );
        if bytes {
            let _ = write!(out, "  {}", hex(&change.bytes));
        }
    }
    out
}
