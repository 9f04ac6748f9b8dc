//! The `caliburn-node` command: runs a machine's node, with data servers that it supervises, and administers one.

mod certificates;
mod configuration;
mod links;
mod node;
mod nodes;
mod orders;
mod reckoning;
mod server_log;
mod undecided;

use caliburn_tools::output;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Nodes and data servers: transactions among machines (Camelot).
#[derive(Parser, Debug)]
#[command(name = "caliburn-node", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it")]
enum Command {
    #[command(flatten)]
    Node(node::Command),
    /// Move money among nodes, and kill or stop them and members of etcd at random; no cent may be missing.
    Demo(nodes::Demo),
    #[command(hide = true)]
    DemoNode(nodes::NodeProcess),
    /// A data server to try a node with: told by its environment.
    #[command(hide = true)]
    BankServer,
}

fn main() -> ExitCode {
    output::run("caliburn-node", || match Arguments::parse().command {
        Command::Node(command) => node::run(&command),
        Command::Demo(arguments) => nodes::run(&arguments),
        Command::DemoNode(arguments) => nodes::work(&arguments),
        Command::BankServer => node::bank_server(),
    })
}
