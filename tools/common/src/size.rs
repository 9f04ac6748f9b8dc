//! Sizes as people write them: `64M`, `1G`, `4096`.

/// Parses a number of bytes with an optional suffix K, M, G or T (powers of 1024).
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        other => return Err(format!("unknown unit {other:?}; use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|e| format!("{digits:?} is not a number: {e}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

/// Bytes for people.
pub fn show(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let step = if bytes == 0 { 0 } else { bytes.ilog2() as usize / 10 };
    let value = bytes as f64 / (1u64 << (10 * step)) as f64;
    if value.fract() == 0.0 {
        format!("{value:.0} {}", units[step])
    } else {
        format!("{value:.1} {}", units[step])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        assert_eq!(
            ["4096", "64M", "1GiB", "2kb"].map(|s| parse(s).unwrap()),
            [4096, 64 << 20, 1 << 30, 2048]
        );
        assert!(parse("64X").is_err() && parse("M").is_err() && parse("99999999T").is_err());
        assert_eq!([0, 512, 1536, 64 << 20].map(show), ["0 B", "512 B", "1.5 KiB", "64 MiB"]);
    }
}
