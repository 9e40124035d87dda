//! A browser that is driven through its DevTools protocol, over two named pipes.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What it may be called.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// For one answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Where a browser is, if there is one.
pub(super) fn found() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let files = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    files.into_iter().find(|file| file.is_file())
}

/// A browser with one page.
pub(super) struct Browser {
    child: Child,
    orders: File,
    /// By which the reading thread is ended: what is read from it comes from here as well.
    answers: File,
    heard: Receiver<Value>,
    next: u64,
    session: Option<String>,
    /// Its events.
    pub(super) events: Vec<Value>,
}

impl Browser {
    /// Starts it, with its files in `folder`.
    pub(super) fn start(program: &Path, folder: &Path) -> Self {
        let pipe = |name: &str| {
            let path = folder.join(name);
            let made = Command::new("mkfifo").arg(&path).status().unwrap();
            assert!(made.success());
            path
        };
        let (orders, answers) = (pipe("orders"), pipe("answers"));
        let profile = format!("--user-data-dir={}", folder.join("profile").display());
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3<\"$ORDERS\" 4>\"$ANSWERS\"", "sh"]).arg(program);
        command.args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox"]);
        command.args(["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]).arg(profile);
        command.env("ORDERS", &orders).env("ANSWERS", &answers).env("HOME", folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        // For both directions, so that neither opening waits for the other end.
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path).unwrap();
        let (orders, answers) = (open(&orders), open(&answers));
        let mut reader = BufReader::new(answers.try_clone().unwrap());
        let (report, heard) = channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            while matches!(reader.read_until(0, &mut bytes), Ok(len) if len > 1) {
                let value = serde_json::from_slice(&bytes[..bytes.len() - 1]).unwrap();
                if report.send(value).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        let (next, session, events) = (1, None, Vec::new());
        let mut browser = Self { child, orders, answers, heard, next, session, events };
        browser.open_page();
        browser
    }

    fn open_page(&mut self) {
        let target = self.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.call("Target.attachToTarget", attach);
        self.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Has it do something, and returns what it answers.
    pub(super) fn call(&mut self, method: &str, parameters: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let mut order = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            order["sessionId"] = session.as_str().into();
        }
        self.orders.write_all(format!("{order}\0").as_bytes()).unwrap();
        let answer = self.wait(method, |value| value["id"] == id);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Waits for the first message that fits; the others are kept as events.
    fn wait(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let left = ANSWER_MAX.saturating_sub(begun.elapsed());
            let value = self.heard.recv_timeout(left);
            let value = value.unwrap_or_else(|_| panic!("the browser does not answer: {what}"));
            if fits(&value) {
                return value;
            }
            self.events.push(value);
        }
    }

    /// Opens a file, and waits until it is loaded; the events are those of this page then.
    pub(super) fn load(&mut self, file: &Path) {
        self.events.clear();
        self.call("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        let loaded = |value: &Value| value["method"] == "Page.loadEventFired";
        if !self.events.iter().any(loaded) {
            let event = self.wait("load", loaded);
            self.events.push(event);
        }
    }

    /// What an expression is on the page; promises are waited for.
    pub(super) fn is(&mut self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Clicks, as a mouse does, into the middle of what an expression finds.
    pub(super) fn click(&mut self, element: &str) {
        let place = self.is(&format!(
            "(() => {{ const e = {element};
             e.scrollIntoView({{block: 'center', inline: 'center'}});
             const r = e.getBoundingClientRect();
             return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": place[0], "y": place[1], "button": "left",
                "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Events of this kind.
    pub(super) fn events_of(&self, method: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["method"] == method).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends the processes that it has started, where it is let.
        let _ = self.orders.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        // An empty message.
        let _ = self.answers.write_all(&[0]);
    }
}
