//! Times of day at which something is done again and again (Camelot, section 3.2: when dumps are made).

use std::str::FromStr;
use std::time::{Duration, SystemTime};

const DAY: u64 = 86_400;

/// Times of day, in UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timetable(Vec<u64>);

/// What is no such list.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no list of times of day in UTC, such as 03:00,15:30 or 23:59:59")]
pub struct TimetableError(String);

impl FromStr for Timetable {
    type Err = TimetableError;

    fn from_str(text: &str) -> Result<Timetable, TimetableError> {
        let one = |time: &str| {
            let mut parts = time.trim().split(':').map(|part| {
                let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
                part.parse::<u64>().ok().filter(|_| digits)
            });
            let (hour, minute) = (parts.next()??, parts.next()??);
            let second = parts.next().unwrap_or(Some(0))?;
            let is_one = hour < 24 && minute < 60 && second < 60 && parts.next().is_none();
            is_one.then_some((hour * 60 + minute) * 60 + second)
        };
        let times: Option<Vec<u64>> = text.split(',').map(one).collect();
        let mut times = times.ok_or_else(|| TimetableError(text.to_owned()))?;
        times.sort_unstable();
        Ok(Timetable(times))
    }
}

impl std::fmt::Display for Timetable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, time) in self.0.iter().enumerate() {
            let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
            write!(f, "{}{hour:02}:{minute:02}:{second:02}", if number > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl Timetable {
    /// How long after this moment the next time of them begins: never at this moment itself.
    pub fn until_next(&self, now: SystemTime) -> Duration {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let today =
            Duration::from_secs(since.as_secs() % DAY) + Duration::from_nanos(since.subsec_nanos().into());
        let later = self.0.iter().map(|time| Duration::from_secs(*time)).find(|time| *time > today);
        let first = self.0.first().map_or(Duration::MAX, |first| Duration::from_secs(first + DAY));
        later.unwrap_or(first).saturating_sub(today)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_today_or_tomorrow() {
        let table: Timetable = "15:30,03:00, 23:59:59".parse().unwrap();
        assert_eq!(table.to_string(), "03:00:00,15:30:00,23:59:59");
        assert_eq!(table.to_string().parse::<Timetable>().unwrap(), table);
        let at = |seconds: u64, ms| {
            SystemTime::UNIX_EPOCH + Duration::from_secs(700 * DAY + seconds) + Duration::from_millis(ms)
        };
        let next = |now| table.until_next(now).as_millis();
        assert_eq!(next(at(0, 0)), 3 * 3600 * 1000);
        assert_eq!(next(at(3 * 3600, 0)), 12 * 3600 * 1000 + 30 * 60 * 1000, "not at once again");
        assert_eq!(next(at(3 * 3600 - 1, 750)), 250);
        assert_eq!(next(at(DAY - 1, 500)), 3 * 3600 * 1000 + 500, "tomorrow");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for wrong in [
            "",
            "3:00",
            "24:00",
            "12:60",
            "12",
            "12:00:60",
            "12:00:00:00",
            "12:00,",
            "-1:00",
            "1e:00",
            "+1:00",
        ] {
            let error = wrong.parse::<Timetable>().unwrap_err().to_string();
            assert!(error.contains("such as 03:00"), "{wrong}: {error}");
        }
    }
}
