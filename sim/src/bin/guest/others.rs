//! What else is written on a disk of blocks while the machine is about to crash: a database of SQLite's, by its own
//! shell, and a tree of files. Both are numbered, and both say what was acknowledged: a commit with
//! `synchronous=FULL`, a file that was forced, renamed, and forced in its folder.

use crate::{mix, say};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The shell with a database, and what it has read back.
pub struct Database {
    shell: Child,
    answers: BufReader<ChildStdout>,
}

impl Database {
    /// Opens it, made if there is none; the last row's number. Every row is what its number says, and none is
    /// missing.
    pub fn open(path: &Path) -> (Database, u64) {
        let mut shell = Command::new("/bin/sqlite3");
        let mut shell =
            shell.arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the shell");
        let answers = BufReader::new(shell.stdout.take().expect("it is piped"));
        let mut database = Database { shell, answers };
        let mode = database.ask("PRAGMA synchronous=FULL; PRAGMA journal_mode=WAL;");
        assert_eq!(mode, "wal");
        let whole = database.ask("PRAGMA integrity_check;");
        assert_eq!(whole, "ok");
        let made = "CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, text TEXT); SELECT 'made';";
        assert_eq!(database.ask(made), "made");
        // Lengths and contents follow from the numbers, as below.
        let odd =
            "SELECT count(*) FROM rows WHERE text != printf('%.*c', number * 37 % 3000, 'x') || number;";
        assert_eq!(database.ask(odd), "0");
        let found = database.ask("SELECT ifnull(max(number), 0) || ' ' || count(*) FROM rows;");
        let numbers: Vec<u64> = found.split(' ').map(|n| n.parse().expect("a number")).collect();
        assert_eq!(numbers[0], numbers[1], "rows are missing");
        (database, numbers[0])
    }

    /// Commits one more row.
    pub fn commit(&mut self, number: u64) {
        let insert = format!(
            "INSERT INTO rows VALUES ({number}, printf('%.*c', {number} * 37 % 3000, 'x') || {number}); \
             SELECT {number};"
        );
        assert_eq!(self.ask(&insert), number.to_string());
    }

    fn ask(&mut self, statements: &str) -> String {
        let mut answer = String::new();
        let input = self.shell.stdin.as_mut().expect("it is piped");
        writeln!(input, "{statements}").and_then(|()| input.flush()).expect("the shell listens");
        self.answers.read_line(&mut answer).expect("the shell answers");
        answer.trim().to_owned()
    }
}

/// Files that are there at a time.
const FILES: u64 = 100;

/// Files in folders, each with its number as its name; the oldest goes when one comes.
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Opens it, made if there is none; the newest file's number. Every file is what its number says, and none that
    /// must be there is missing.
    pub fn open(root: &Path) -> (Tree, u64) {
        let tree = Tree { root: root.to_owned() };
        let mut found: Vec<u64> = Vec::new();
        for folder in (0..7).map(|n| tree.folder(n)) {
            fs::create_dir_all(&folder).expect("folders can be made");
            for entry in fs::read_dir(&folder).expect("folders can be read") {
                let path = entry.expect("folders can be read").path();
                match path.extension() {
                    // It was under way.
                    Some(_) => fs::remove_file(&path).expect("files can be removed"),
                    None => {
                        let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
                        let number = name.parse().expect("a number");
                        let there = fs::read(&path).expect("files can be read");
                        assert!(there == content(number), "file {number} is not what it was");
                        found.push(number);
                    }
                }
            }
        }
        force(root);
        let last = found.iter().copied().max().unwrap_or(0);
        for number in last.saturating_sub(FILES - 1).max(1)..=last {
            assert!(found.contains(&number), "file {number} of {last} is missing");
        }
        (tree, last)
    }

    /// Adds a file.
    pub fn add(&self, number: u64) {
        let (folder, part) = (self.folder(number), format!("{number}.part"));
        let mut file = File::create(folder.join(&part)).expect("files can be made");
        file.write_all(&content(number)).and_then(|()| file.sync_all()).expect("files can be written");
        fs::rename(folder.join(part), folder.join(number.to_string())).expect("files can be renamed");
        force(&folder);
        if let Some(oldest) = number.checked_sub(FILES).filter(|n| *n > 0) {
            // Only one that must not be there any more: its going need not last.
            let _ = fs::remove_file(self.folder(oldest).join(oldest.to_string()));
        }
    }

    fn folder(&self, number: u64) -> PathBuf {
        self.root.join((number % 7).to_string())
    }
}

/// Of up to nine pages.
fn content(number: u64) -> Vec<u8> {
    let words = mix(number) % 4500;
    (0..words).flat_map(|word| mix(number << 16 | word).to_le_bytes()).collect()
}

fn force(folder: &Path) {
    File::open(folder).and_then(|folder| folder.sync_all()).expect("folders can be forced");
}

/// Both of them, and the last of each.
pub struct Beside {
    database: Database,
    tree: Tree,
    pub last: [u64; 2],
}

impl Beside {
    /// Opens both in a folder; what was acknowledged of each is there.
    pub fn open(folder: &Path, acknowledged: [u64; 2]) -> Beside {
        let (database, last_row) = Database::open(&folder.join("database"));
        let (tree, last_file) = Tree::open(&folder.join("tree"));
        let last = [last_row, last_file];
        let enough = last.iter().zip(acknowledged).all(|(there, acknowledged)| *there >= acknowledged);
        assert!(enough, "rows and files: {acknowledged:?} was acknowledged and {last:?} is there");
        Beside { database, tree, last }
    }

    /// Writes both, from their last numbers on, until the machine is gone.
    pub fn write(self) {
        let Beside { mut database, tree, last: [rows, files] } = self;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in rows + 1.. {
                    database.commit(number);
                    say(format!("ack 2 {number}\n"));
                }
            });
            for number in files + 1.. {
                tree.add(number);
                say(format!("ack 3 {number}\n"));
            }
        });
    }
}
