//! Orders to a data server, and waiting until they are obeyed.

use crate::node::{Contact, said, state_name, status_json};
use caliburn_dist::proto::admin::admin_client::AdminClient;
use caliburn_dist::proto::admin::{Order, State, Status, What};
use caliburn_tools::{Failure, text};
use clap::Args;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// So often a server is looked at that is waited for.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub struct Ordered {
    #[command(flatten)]
    contact: Contact,
    /// Name of the data server.
    name: String,
    /// Don't wait until it is done.
    #[arg(long)]
    no_wait: bool,
    /// Seconds that it is waited for.
    #[arg(long, default_value_t = 60)]
    pub patience: u64,
}

#[derive(Args, Debug)]
pub struct Starting {
    #[command(flatten)]
    pub ordered: Ordered,
    /// Its clock forgets how far it had gone: for one that others refuse since its machine's clock was ahead once.
    /// Timestamps may come again.
    #[arg(long)]
    pub forget_clock: bool,
}

impl Ordered {
    pub async fn run(&self, what: What, forget_clock: bool) -> Result<ExitCode, Failure> {
        let mut admin = self.contact.admin()?;
        let before = self.status(&mut admin).await?;
        let ran = matches!(before.state(), State::Starting | State::Running | State::Stopping);
        if what == What::Crash && !ran {
            return Err(format!("server {:?} does not run", self.name).into());
        }
        let order = Order { name: self.name.clone(), what: what as i32, forget_clock };
        admin.give(order).await.map_err(said)?;
        if self.no_wait {
            return self.contact.done(&format!("server {:?} is told", self.name));
        }
        let until = Instant::now() + Duration::from_secs(self.patience);
        let given = self.status(&mut admin).await?.server.unwrap_or_default();
        let orders = given.started + given.restarted;
        loop {
            let status = self.status(&mut admin).await?;
            // A process that was not there before the order.
            let another = match what {
                What::Start | What::Restart => status.orders >= orders,
                _ => status.starts > before.starts,
            };
            match (what, status.state()) {
                (What::Stop, State::Stopped) => return self.tell(&status),
                (What::Crash, State::Waiting | State::Failed | State::Stopped) => return self.tell(&status),
                (What::Crash, _) if another => return self.tell(&status),
                (What::Start | What::Restart, State::Running) if another => return self.tell(&status),
                (What::Start | What::Restart, State::Waiting | State::Failed) if another => {
                    let (name, how) = (&self.name, text::plain(&status.ended));
                    let output = format!("its output is in the node's directory, logs/{name}.log");
                    return Err(format!("server {name:?} has ended: {how}; {output}").into());
                }
                _ => {}
            }
            if Instant::now() > until {
                let state = state_name(status.state());
                return Err(format!("server {:?} is {state} after {} s", self.name, self.patience).into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn status(&self, admin: &mut AdminClient<Channel>) -> Result<Status, Failure> {
        let all = self.contact.shown(admin).await?.servers;
        let own = all
            .into_iter()
            .find(|status| status.server.as_ref().is_some_and(|server| server.name == self.name));
        own.ok_or_else(|| format!("no server is called {:?}", self.name).into())
    }

    fn tell(&self, status: &Status) -> Result<ExitCode, Failure> {
        match self.contact.json {
            true => println!("{}", status_json(status)),
            false => println!("server {} is {}", text::plain(&self.name), state_name(status.state())),
        }
        Ok(ExitCode::SUCCESS)
    }
}
