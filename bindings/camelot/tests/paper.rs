//! The paper's server and client (Camelot, section 3.3) in C, with stubs that are made here; a node and a bank in
//! Rust beside them.

use caliburn_dist::bank;
use caliburn_dist::cluster::Cluster;
use caliburn_dist::keep::members::free_addresses;
use caliburn_dist::node::Node;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/paper")
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// The library that was made for this test: the newest beside it.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let all = std::fs::read_dir(test.parent().unwrap()).unwrap().map(|entry| entry.unwrap());
    let all = all.filter(|entry| {
        let name = entry.file_name().into_string().unwrap_or_default();
        name.starts_with("libcaliburn_camelot") && name.ends_with(".a")
    });
    all.max_by_key(|entry| entry.metadata().unwrap().modified().unwrap()).expect("it was made").path()
}

/// Makes the stubs, and a program of each source.
fn build(to: &Path) {
    for interface in ["small_record_array.defs", "bank.defs"] {
        let mut stubs = Command::new(env!("CARGO_BIN_EXE_camelot-stubs"));
        succeed(stubs.arg(sources().join(interface)).arg("--out").arg(to));
    }
    let library = library();
    for program in ["server", "client"] {
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]).arg(to.join(program));
        compiler
            .arg(format!("-I{}/include", env!("CARGO_MANIFEST_DIR")))
            .arg("-I")
            .arg(to)
            .arg("-I")
            .arg(sources());
        compiler.arg(sources().join(format!("{program}.c"))).arg(to.join("bank_user.c"));
        compiler.arg(to.join("small_record_array_user.c"));
        if program == "server" {
            compiler.arg(to.join("small_record_array_server.c"));
        }
        succeed(compiler.arg(&library).args(["-lpthread", "-ldl", "-lm"]));
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct World {
    dir: tempfile::TempDir,
    addresses: Vec<SocketAddr>,
}

impl World {
    fn new() -> World {
        let world = World { dir: tempfile::tempdir().unwrap(), addresses: free_addresses(3).unwrap() };
        build(world.dir.path());
        let [one, two, three] = [0, 1, 2].map(|at| world.addresses[at]);
        let nodes = format!("1 http://{one}\n2 http://{two} testserver\n3 http://{three} bank\n");
        std::fs::write(world.dir.path().join("nodes"), nodes).unwrap();
        world
    }

    fn told(&self, program: &str) -> Command {
        let mut command = Command::new(self.dir.path().join(program));
        command.env("CALIBURN_CLUSTER", "paper").env("CALIBURN_NODES", self.dir.path().join("nodes"));
        command.env("CALIBURN_COORDINATOR", "1");
        command
    }

    /// Runs the server in C, and waits until it serves.
    fn serve(&self) -> Server {
        let mut command = self.told("server");
        command.env("CALIBURN_SERVER", "testserver").env("CALIBURN_NUMBER", "2");
        command.env("CALIBURN_STORE", self.dir.path().join("store"));
        command.env("CALIBURN_LISTEN", self.addresses[1].to_string());
        let log =
            std::fs::File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let mut server = Server(command.stdout(log).stderr(Stdio::inherit()).spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(self.addresses[1]).is_err() {
            assert!(server.0.try_wait().unwrap().is_none(), "the server has ended");
            assert!(Instant::now() < until, "the server does not serve");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn run(&self, argument: &[&str], says: &str) {
        let output = self.told("client").args(argument).output().unwrap();
        let (said, wrong) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.ends_with(says), "{argument:?}: {said} {wrong}");
    }

    async fn node(&self, number: u64) -> Node {
        let cluster = Cluster::new("paper").read_nodes(&self.dir.path().join("nodes")).unwrap();
        let node = Node::builder(cluster, number, self.dir.path().join(number.to_string()));
        let node = bank::segment(node).start().await.unwrap();
        let (serving, address) = (node.clone(), self.addresses[number as usize - 1]);
        tokio::spawn(async move {
            let bank = bank::service(&serving);
            serving.serve(address, |services| _ = services.add_service(bank)).await.unwrap();
        });
        node
    }
}

#[test]
fn the_papers_programs_run_and_talk_to_nodes_in_rust() {
    let world = World::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = world.serve();
    // There is no node yet.
    world.run(&["alone"], "alone\n");
    let (one, three) = runtime.block_on(async { (world.node(1).await, world.node(3).await) });
    world.run(&[], "well\n");
    // Killed, and recovered.
    drop(server);
    let server = world.serve();
    world.run(&["again"], "again\n");
    let log = std::fs::read_to_string(world.dir.path().join("log")).unwrap();
    assert!(log.contains("committed\n"), "its CommitProc is called");
    drop(server);
    runtime.block_on(async {
        one.stop().await;
        three.stop().await;
    });
}
