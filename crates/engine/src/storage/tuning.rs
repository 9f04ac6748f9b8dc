//! What can be tuned while a store is open.

use super::error::OpenError;
use caliburn_os::memory::Limits;
use std::time::Duration;

/// What can be changed while a store is open: [`Store::set_options`](crate::Store::set_options).
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// Truncation begins when this share of the log is in use, in percent. Default 50.
    pub truncate_percent: u8,
    /// A lazy commit is forced within this time. Default 100 ms. [`Duration::MAX`]: never for the time's sake;
    /// then it survives a power cut when a later commit in class `Power` or
    /// [`Store::flush`](crate::Store::flush) has returned, or truncation needed it. What a power cut takes is
    /// always the newest commits, whole ones.
    pub flush_interval: Duration,
    /// Bytes of private copies of pages that may be kept; beyond it pages are truncated and given back,
    /// and committers are slowed. `None`, the default: a third of what the process may use.
    pub memory_budget: Option<u64>,
    /// Whether superseded bytes of lazy commits are dropped (inter-transaction optimisation). Default yes.
    pub merge_lazy: bool,
    /// Bytes a second that are read ahead at most ([`Options::prefetch`](crate::Options::prefetch)). `None`, the
    /// default: as fast as they come.
    pub prefetch_rate: Option<u64>,
}

/// The least memory budget.
pub(crate) const MEMORY_BUDGET_MIN: u64 = if cfg!(caliburn_sim) { 8 << 10 } else { 1 << 20 };

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            truncate_percent: 50,
            flush_interval: Duration::from_millis(100),
            memory_budget: None,
            merge_lazy: true,
            prefetch_rate: None,
        }
    }
}

impl Tuning {
    /// Bytes of private pages that may be kept.
    pub(crate) fn budget(&self, limits: &Limits) -> u64 {
        self.memory_budget.unwrap_or(limits.bytes() / 3).max(MEMORY_BUDGET_MIN)
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let bad = |name, value, why: &str| Err(OpenError::Option { name, value, why: why.into() });
        if !(1..=90).contains(&self.truncate_percent) {
            return bad("truncate_percent", self.truncate_percent.into(), "must be 1 to 90");
        }
        if self.flush_interval.is_zero() {
            return bad("flush_interval", 0, "must be longer than nothing; use Class::Power for no delay");
        }
        if self.flush_interval > Duration::from_secs(86_400) && self.flush_interval != Duration::MAX {
            let why = "must be at most a day (86400 s), or Duration::MAX for never";
            return bad("flush_interval", self.flush_interval.as_secs(), why);
        }
        if self.prefetch_rate == Some(0) {
            return bad("prefetch_rate", 0, "nothing would ever be read: use Prefetch::Asked");
        }
        match self.memory_budget {
            Some(bytes) if bytes < MEMORY_BUDGET_MIN => {
                bad("memory_budget", bytes, &format!("must be at least {MEMORY_BUDGET_MIN}"))
            }
            _ => Ok(()),
        }
    }
}
