//! What a node does with the answers of its keeper.

use crate::commit::word::Slot;
use crate::host::Role;
use crate::keep::{Claim, Kept, Looked};
use crate::node::core::Core;
use crate::node::outside::Times;
use crate::reliance::Reliance;

impl Core<'_> {
    /// An answer of the keeper.
    pub(super) fn kept(&self, claim: &Claim, kept: Kept, times: Times) {
        let Times { asked, answered } = times;
        match kept {
            Kept::Slot(slot) if !Reliance::counts(slot, asked, self.outside.now()) => {}
            Kept::Slot(slot) => {
                // That it aborted is told to others: whoever has closed the slot knows it in another life too.
                if (claim.role, slot) == (Role::Coordinator, Slot::Closed)
                    && self.unless_failed(self.ledger.know(&self.outside.known())) != Some(true)
                {
                    return;
                }
                let which = (claim.tid, claim.role, claim.of);
                // The force may have taken long.
                self.with_host(|host, now| host.found(which, slot, (asked, answered), now));
            }
            Kept::Fenced => self.looked(Looked::Fenced, times),
            Kept::Forgot(doubt) => self.looked(Looked::Forgot(doubt), times),
        }
    }

    /// The keeper was looked at.
    pub(super) fn looked(&self, looked: Looked, times: Times) {
        match looked {
            Looked::Well(_) => self.with_host(|host, _| host.contact(times.asked, times.answered)),
            Looked::Forgot(doubt) => {
                self.state().host.reliance().doubt();
                self.outside.doubts(doubt);
            }
            Looked::Fenced => {
                self.outside.fail("another process has its identity: it lives another life there")
            }
        }
    }
}
