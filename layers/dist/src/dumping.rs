//! Dumps of a data server's store, at times of day.

use crate::log_plan::LogPlan;
use crate::node::Node;
use std::convert::Infallible;
use std::time::{Duration, SystemTime};

/// Makes dumps at the times of day that are planned.
pub(crate) async fn dump_again_and_again(node: &Node, plan: &LogPlan) -> Infallible {
    /// The clock may be set meanwhile.
    const LOOKS: Duration = Duration::from_secs(30);
    let (Some(dir), Some(times)) = (&plan.dumps, &plan.dump_at) else { return std::future::pending().await };
    let mut last = SystemTime::UNIX_EPOCH;
    loop {
        let now = SystemTime::now().max(last);
        let wait = times.until_next(now);
        tokio::time::sleep(wait.min(LOOKS)).await;
        if wait > LOOKS {
            continue;
        }
        last = now + wait;
        match node.dump_to(dir).await {
            Ok(made) => tracing::info!(dump = %made.display(), "its store was dumped"),
            Err(error) => tracing::error!(%error, "no dump was made: the next one is, at its time"),
        }
    }
}
