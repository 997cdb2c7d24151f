//! Programs in a place: a network namespace and a cgroup, from their first instruction on.

use std::{
    ffi::{CString, OsStr},
    fs::{self, File},
    io::{self, Read, Write},
    os::{fd::AsFd, unix::ffi::OsStringExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, LazyLock, Mutex, mpsc},
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::{cgroup::Cgroup, netns::Namespace};

const STEP: Duration = Duration::from_millis(2);

/// All that a child needs between fork and exec, opened before the fork.
#[derive(Debug, Default)]
pub(crate) struct Setting {
    pub netns: Option<File>,
    pub procs: Option<File>,
    pub resolv_conf: Option<CString>,
}

/// A program about to run. `spawn` and `run` start it.
#[derive(Debug)]
pub struct Program {
    command: Command,
    setting: Setting,
    input: Vec<u8>,
    hold: bool,
    limit: Duration,
    resolv_conf: Option<PathBuf>,
}

impl Program {
    pub fn new(program: impl AsRef<OsStr>, namespace: Option<&Namespace>, cgroup: Option<&Cgroup>) -> Result<Self> {
        let netns = namespace.map(Namespace::handle).transpose()?;
        let open = |cgroup: &Cgroup| File::options().write(true).open(cgroup.path().join("cgroup.procs"));
        let setting = Setting { netns, procs: cgroup.map(open).transpose()?, resolv_conf: None };
        let (input, limit) = (Vec::new(), Duration::from_secs(20));
        Ok(Program { command: Command::new(program), setting, input, hold: false, limit, resolv_conf: None })
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// What it reads from stdin (nothing, unless set).
    pub fn input(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.input = text.into();
        self
    }

    /// Its stdin stays open as long as it runs, for programs that end with it.
    pub fn hold(mut self) -> Self {
        self.hold = true;
        self
    }

    /// After this time `run` kills it and says so; 20 s unless set.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The /etc/resolv.conf that this program alone sees, for getent and all that asks the system's resolver.
    pub fn resolv_conf(mut self, text: &str) -> Result<Self> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("beeline-harness-{}-{number}.resolv", std::process::id()));
        fs::write(&path, text)?;
        self.setting.resolv_conf = Some(CString::new(path.clone().into_os_string().into_vec())?);
        self.resolv_conf = Some(path);
        Ok(self)
    }

    /// Starts it, with its output collected; it is killed when the value is dropped.
    pub fn spawn(mut self) -> Result<Running> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = self.command.get_program().to_string_lossy().into_owned();
        let mut child = start(self.command, self.setting).with_context(|| format!("start {name}"))?;
        let (stdout, stderr) = (Pipe::drain(child.stdout.take()), Pipe::drain(child.stderr.take()));
        if let Some(stdin) = child.stdin.as_ref().filter(|_| !self.input.is_empty()) {
            let mut stdin = File::from(stdin.as_fd().try_clone_to_owned()?);
            thread::spawn(move || stdin.write_all(&self.input)); // It may not want to read all of it.
        }
        if !self.hold {
            child.stdin = None;
        }
        Ok(Running { name, child, stdout, stderr, resolv_conf: self.resolv_conf })
    }

    /// Runs it to its end.
    pub fn run(self) -> Result<Output> {
        let limit = self.limit;
        self.spawn()?.finish(limit)
    }

    /// For a peer that is talked to over its pipes.
    pub(crate) fn spawn_piped(mut self) -> Result<Child> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped());
        start(self.command, self.setting).context("start the dialling child")
    }
}

#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// A program that runs; killed and reaped on drop.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    stdout: Pipe,
    stderr: Pipe,
    resolv_conf: Option<PathBuf>,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid() as i32).context("a child has a pid")?;
        Ok(kill_process(pid, signal)?)
    }

    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until its output (either stream) contains `text`.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if self.stdout().contains(text) || self.stderr().contains(text) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended ({status}) before it said {text:?}: {}{}", self.name, self.stdout(), self.stderr());
            }
            sleep(STEP);
        }
        bail!("{} did not say {text:?} within {limit:?}: {}{}", self.name, self.stdout(), self.stderr());
    }

    /// Waits for its end and gives all of its output; killed with an error if it takes longer than `limit`.
    pub fn finish(mut self, limit: Duration) -> Result<Output> {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Output { status, stdout: self.stdout.all(), stderr: self.stderr.all() });
            }
            sleep(STEP);
        }
        bail!("{} still ran after {limit:?}: {}{}", self.name, self.stdout(), self.stderr());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.resolv_conf.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

/// One stream of a program, drained by a thread so that the program never blocks on a full pipe.
#[derive(Debug)]
struct Pipe {
    text: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Pipe {
    fn drain(source: Option<impl Read + Send + 'static>) -> Pipe {
        let text = Arc::new(Mutex::new(Vec::new()));
        let thread = source.map(|source| {
            let text = text.clone();
            thread::spawn(move || copy(source, &text))
        });
        Pipe { text, thread }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().expect("no panic while held")).into_owned()
    }

    /// All of it: the other end is closed, or was inherited by a grandchild that outlives the program (then what
    /// there is after a moment).
    fn all(&mut self) -> String {
        if let Some(thread) = self.thread.take() {
            (0..100).take_while(|_| !thread.is_finished()).for_each(|_| sleep(STEP));
        }
        self.text()
    }
}

fn copy(mut source: impl Read, text: &Mutex<Vec<u8>>) {
    let mut part = [0; 4096];
    while let Ok(count @ 1..) = source.read(&mut part) {
        text.lock().expect("no panic while held").extend_from_slice(&part[..count]);
    }
}

struct Job {
    command: Command,
    reply: mpsc::Sender<io::Result<Child>>,
}

/// All programs are started by one thread that lives as long as the process: the kernel sends the "parent died"
/// signal when the *thread* that forked ends, and tests fork from short-lived threads.
fn start(mut command: Command, setting: Setting) -> io::Result<Child> {
    static STARTER: LazyLock<Mutex<mpsc::Sender<Job>>> = LazyLock::new(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || jobs.into_iter().for_each(|mut job| drop(job.reply.send(job.command.spawn()))));
        Mutex::new(sender)
    });
    crate::sys::confine(&mut command, Arc::new(setting));
    let (reply, answer) = mpsc::channel();
    STARTER.lock().expect("no panic while held").send(Job { command, reply }).map_err(io::Error::other)?;
    answer.recv().map_err(io::Error::other)?
}
