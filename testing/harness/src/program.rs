//! Programs that run in a network namespace and a cgroup from their first instruction on.

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

use crate::{cgroup::Cgroup, netns::NetworkNamespace};

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// File handles that a child needs between fork and exec, opened before the fork.
#[derive(Debug, Default)]
pub(crate) struct ProcessContext {
    pub netns: Option<File>,
    pub procs: Option<File>,
    pub resolv_conf: Option<CString>,
}

/// A program that `spawn` or `run` starts.
#[derive(Debug)]
pub struct TestProgram {
    command: Command,
    context: ProcessContext,
    input: Vec<u8>,
    keep_stdin: bool,
    limit: Duration,
    resolv_conf: Option<PathBuf>,
}

impl TestProgram {
    pub fn new(
        program: impl AsRef<OsStr>,
        namespace: Option<&NetworkNamespace>,
        cgroup: Option<&Cgroup>,
    ) -> Result<Self> {
        let netns = namespace.map(NetworkNamespace::handle).transpose()?;
        let open = |cgroup: &Cgroup| File::options().write(true).open(cgroup.path().join("cgroup.procs"));
        let context = ProcessContext { netns, procs: cgroup.map(open).transpose()?, resolv_conf: None };
        let (input, limit) = (Vec::new(), Duration::from_secs(20));
        Ok(TestProgram { command: Command::new(program), context, input, keep_stdin: false, limit, resolv_conf: None })
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Input that the program reads from stdin; empty unless set.
    pub fn input(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.input = text.into();
        self
    }

    /// Keeps stdin open as long as the program runs, for programs that end when it is closed.
    pub fn keep_stdin_open(mut self) -> Self {
        self.keep_stdin = true;
        self
    }

    /// Time after which `run` kills the program and returns an error; 20 s unless set.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Gives the program an /etc/resolv.conf of its own, for getent and everything else that uses the system's
    /// resolver.
    pub fn resolv_conf(mut self, text: &str) -> Result<Self> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("beeline-harness-{}-{number}.resolv", std::process::id()));
        fs::write(&path, text)?;
        self.context.resolv_conf = Some(CString::new(path.clone().into_os_string().into_vec())?);
        self.resolv_conf = Some(path);
        Ok(self)
    }

    /// Starts the program and collects its output. The program is killed when the value is dropped.
    pub fn spawn(mut self) -> Result<RunningProgram> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = self.command.get_program().to_string_lossy().into_owned();
        let mut child = start(self.command, self.context).with_context(|| format!("cannot start {name}"))?;
        let (stdout, stderr) = (Pipe::drain(child.stdout.take()), Pipe::drain(child.stderr.take()));
        if let Some(stdin) = child.stdin.as_ref().filter(|_| !self.input.is_empty()) {
            let mut stdin = File::from(stdin.as_fd().try_clone_to_owned()?);
            thread::spawn(move || stdin.write_all(&self.input)); // The program need not read all of it.
        }
        if !self.keep_stdin {
            child.stdin = None;
        }
        Ok(RunningProgram { name, child, stdout, stderr, resolv_conf: self.resolv_conf })
    }

    /// Runs the program to its end.
    pub fn run(self) -> Result<ProgramOutput> {
        let limit = self.limit;
        self.spawn()?.finish(limit)
    }

    /// Starts the program with pipes for stdin and stdout, for a child that exchanges messages over them.
    pub(crate) fn spawn_piped(mut self) -> Result<Child> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped());
        start(self.command, self.context).context("cannot start the harness child process")
    }
}

#[derive(Debug)]
pub struct ProgramOutput {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// A running program. It is killed and reaped on drop.
#[derive(Debug)]
pub struct RunningProgram {
    name: String,
    child: Child,
    stdout: Pipe,
    stderr: Pipe,
    resolv_conf: Option<PathBuf>,
}

impl RunningProgram {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Output that the program has written so far.
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

    /// Waits until stdout or stderr contains `text`.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if self.stdout().contains(text) || self.stderr().contains(text) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended ({status}) before it printed {text:?}: {}{}", self.name, self.stdout(), self.stderr());
            }
            sleep(POLL_INTERVAL);
        }
        bail!("{} did not print {text:?} within {limit:?}: {}{}", self.name, self.stdout(), self.stderr());
    }

    /// Waits for the end of the program and returns its output. Kills it and returns an error after `limit`.
    pub fn finish(mut self, limit: Duration) -> Result<ProgramOutput> {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                return Ok(ProgramOutput { status, stdout: self.stdout.all(), stderr: self.stderr.all() });
            }
            sleep(POLL_INTERVAL);
        }
        bail!("{} did not end within {limit:?}: {}{}", self.name, self.stdout(), self.stderr());
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.resolv_conf.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

/// One output stream, read by a thread so that the program never blocks on a full pipe.
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

    /// Waits for the end of the stream and returns all of it. A grandchild that outlives the program may keep the
    /// stream open; then the text after a short wait is returned.
    fn all(&mut self) -> String {
        if let Some(thread) = self.thread.take() {
            (0..100).take_while(|_| !thread.is_finished()).for_each(|_| sleep(POLL_INTERVAL));
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

struct StartRequest {
    command: Command,
    reply: mpsc::Sender<io::Result<Child>>,
}

/// One thread that lives as long as the process starts all programs: the kernel sends the parent death signal when the
/// *thread* that forked ends, and tests fork from short-lived threads.
fn start(mut command: Command, context: ProcessContext) -> io::Result<Child> {
    static STARTER: LazyLock<Mutex<mpsc::Sender<StartRequest>>> = LazyLock::new(|| {
        let (sender, requests) = mpsc::channel::<StartRequest>();
        thread::spawn(move || {
            requests.into_iter().for_each(|mut request| drop(request.reply.send(request.command.spawn())))
        });
        Mutex::new(sender)
    });
    crate::sys::confine(&mut command, Arc::new(context));
    let (reply, answer) = mpsc::channel();
    STARTER.lock().expect("no panic while held").send(StartRequest { command, reply }).map_err(io::Error::other)?;
    answer.recv().map_err(io::Error::other)?
}
