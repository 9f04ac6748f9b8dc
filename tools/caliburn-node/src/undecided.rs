//! `node undecided`, `judge`, `forget`, `accept`: transactions whose coordinator, or whose etcd, is gone.

use crate::node::{Contact, said};
use caliburn_dist::proto::caliburn::{AcceptRequest, JudgeRequest, Outcome, UndecidedRequest};
use caliburn_tools::Failure;
use caliburn_tools::text::plain;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::process::ExitCode;

#[derive(Args, Debug)]
pub struct Which {
    #[command(flatten)]
    contact: Contact,
    /// A data server of the node, in place of the node itself.
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
}

#[derive(Args, Debug)]
pub struct Judge {
    #[command(flatten)]
    which: Which,
    /// The transaction, as `undecided` shows it.
    transaction: String,
    /// How it is to end here.
    outcome: End,
}

#[derive(Args, Debug)]
pub struct Forget {
    #[command(flatten)]
    which: Which,
    /// The transaction, as `undecided` shows it.
    transaction: String,
}

#[derive(Args, Debug)]
pub struct Accept {
    #[command(flatten)]
    which: Which,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum End {
    Committed,
    Aborted,
}

fn name(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::None => None,
        Outcome::Committed => Some("committed"),
        Outcome::Aborted => Some("aborted"),
    }
}

impl Which {
    pub async fn run(&self) -> Result<ExitCode, Failure> {
        let mut node = self.contact.node_or(self.server.as_deref()).await?;
        let found = node.undecided(UndecidedRequest {}).await.map_err(said)?.into_inner();
        if self.contact.json {
            let undecided = found.undecided.iter();
            let undecided = undecided.map(
                |it| json!({"transaction": it.transaction, "participants": it.participants, "asks": it.asks}),
            );
            let judgements = found.judgements.iter().map(|it| {
                json!({"transaction": it.transaction, "outcome": name(it.outcome()), "otherwise": name(it.otherwise())})
            });
            let (undecided, judgements): (Vec<_>, Vec<_>) = (undecided.collect(), judgements.collect());
            let doubt = Some(&found.doubt).filter(|doubt| !doubt.is_empty());
            println!("{}", json!({"undecided": undecided, "judgements": judgements, "doubt": doubt}));
            return Ok(ExitCode::SUCCESS);
        }
        if !found.doubt.is_empty() {
            println!("{}", plain(&found.doubt));
        }
        for it in &found.undecided {
            if it.asks {
                println!(
                    "{}  can't be decided by its slots; waits for nodes {:?} to say how it ended, or for a judgement",
                    plain(&it.transaction),
                    it.participants
                );
                continue;
            }
            let coordinator = it.transaction.split('.').next().unwrap_or_default();
            println!(
                "{}  waits for node {}; participants {:?}",
                plain(&it.transaction),
                plain(coordinator),
                it.participants
            );
        }
        for it in &found.judgements {
            let outcome = name(it.outcome()).unwrap_or("?");
            let otherwise = match name(it.otherwise()) {
                Some(otherwise) => format!(", WRONGLY: it is {otherwise} everywhere else"),
                None => ", and nobody knows yet whether that was right".to_owned(),
            };
            println!("{}  was judged: {outcome}{otherwise}", plain(&it.transaction));
        }
        if found.undecided.is_empty() && found.judgements.is_empty() {
            println!("nothing is undecided");
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn say(&self, transaction: &str, outcome: Outcome, done: &str) -> Result<ExitCode, Failure> {
        let mut node = self.contact.node_or(self.server.as_deref()).await?;
        let request = JudgeRequest { transaction: transaction.to_owned(), outcome: outcome as i32, needs: 0 };
        node.judge(request).await.map_err(said)?;
        self.contact.done(&format!("transaction {transaction} {done}"))
    }
}

impl Accept {
    pub async fn run(&self) -> Result<ExitCode, Failure> {
        let mut node = self.which.contact.node_or(self.which.server.as_deref()).await?;
        node.accept(AcceptRequest {}).await.map_err(said)?;
        self.which.contact.done("the etcd is accepted; the server stops, and relies on it when it runs again")
    }
}

impl Judge {
    pub async fn run(&self) -> Result<ExitCode, Failure> {
        match self.outcome {
            End::Committed => {
                self.which.say(&self.transaction, Outcome::Committed, "is committed here").await
            }
            End::Aborted => self.which.say(&self.transaction, Outcome::Aborted, "is aborted here").await,
        }
    }
}

impl Forget {
    pub async fn run(&self) -> Result<ExitCode, Failure> {
        self.which.say(&self.transaction, Outcome::None, "is forgotten").await
    }
}
