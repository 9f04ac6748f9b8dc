//! What RVM's tools share.

/// A number as C has it.
pub fn number(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let parsed = match lower.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if lower.len() > 1 && lower.starts_with('0') => u64::from_str_radix(&lower[1..], 8),
        None => lower.parse(),
    };
    parsed.map_err(|e| format!("{text:?} is no number: {e}"))
}
