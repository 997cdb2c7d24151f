//! The rules of cgroups in the kernel: which processes are excluded, and which see a view. They come from options,
//! from the configuration, from annotations of pods and from `beeline run --view`. A cgroup may be recreated under its
//! path (a service that restarts), so the rules are checked periodically.

use crate::pod_rules::PodRules;
use crate::view::{self, ViewCgroups};
use anyhow::Context;
use beeline_datapath::control::{CgroupRule, Control};
use beeline_model::Name;
use beeline_model::planner::Planner;
use beeline_model::refusal::{Refusal, RefusalReason, RefusalSubject};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CHECK_INTERVAL: Duration = Duration::from_millis(500);

pub struct CgroupRules {
    /// Cgroups of `--exclude-cgroup`, whose processes are not served.
    excluded: Vec<PathBuf>,
    /// Cgroups of the configuration, with their view.
    configured: Vec<(PathBuf, Name)>,
    view_cgroups: ViewCgroups,
    /// The rules in the kernel, by cgroup id.
    applied: Option<Vec<(u64, CgroupRule)>>,
    /// The applied rules replaced all rules of an earlier agent.
    applied_all: bool,
    next_check: Instant,
}

/// The inputs that other parts of the agent own.
pub struct RuleContext<'a> {
    pub planner: &'a Planner,
    pub control: &'a Control,
    pub pod_rules: &'a [(PathBuf, PodRules)],
    /// All pods are known, so rules of an earlier agent that no pod asks for may be removed.
    pub complete: bool,
}

impl CgroupRules {
    pub fn new(root: &Path, excluded: Vec<PathBuf>, configured: Vec<(PathBuf, Name)>) -> CgroupRules {
        CgroupRules {
            excluded,
            configured,
            view_cgroups: ViewCgroups::adopt(root),
            applied: None,
            applied_all: false,
            next_check: Instant::now(),
        }
    }

    pub fn set_configured(&mut self, configured: Vec<(PathBuf, Name)>) {
        self.configured = configured;
    }

    /// Whether to call `update`, because pods with rules changed or `CHECK_INTERVAL` has passed.
    pub fn is_due(&self, pods_changed: bool, now: Instant) -> bool {
        pods_changed || now >= self.next_check
    }

    /// Writes the rules to the kernel if they changed.
    pub fn update(&mut self, context: &RuleContext<'_>, now: Instant) {
        self.next_check = now + CHECK_INTERVAL;
        self.view_cgroups.remove_empty();
        if let Err(error) = self.apply(context) {
            tracing::debug!(%error, "cannot write the rules of cgroups; retrying");
        }
    }

    fn apply(&mut self, context: &RuleContext<'_>) -> beeline_datapath::Result<()> {
        let rules = view::merge_rules(self.wanted(context));
        let now: Vec<(u64, CgroupRule)> = rules.iter().map(|(_, id, rule)| (*id, *rule)).collect();
        if self.applied.as_ref() == Some(&now) && self.applied_all == context.complete {
            return Ok(());
        }
        let rules: Vec<(&Path, CgroupRule)> = rules.iter().map(|(path, _, rule)| (path.as_path(), *rule)).collect();
        if context.complete {
            context.control.set_rules(&rules)?;
        } else {
            // Rules that an earlier agent wrote for pods stay until all pods are known. Only our own are removed.
            context.control.add_rules(&rules)?;
            let before = self.applied.iter().flatten().map(|(id, _)| *id);
            context.control.remove_rules(before.filter(|id| !now.iter().any(|(wanted, _)| wanted == id)));
        }
        (self.applied, self.applied_all) = (Some(now), context.complete);
        Ok(())
    }

    fn wanted(&self, context: &RuleContext<'_>) -> impl Iterator<Item = (PathBuf, CgroupRule)> {
        let rule = |view: &Name| view_rule(context.planner, view);
        let excluded = self.excluded.iter().map(|path| (path.clone(), CgroupRule::EXCLUDED));
        let configured = self.configured.iter().map(move |(path, view)| (path.clone(), rule(view)));
        let created = self.view_cgroups.iter().map(move |(path, view)| (path.to_owned(), rule(view)));
        let pods = context.pod_rules.iter().map(move |(path, rules)| {
            let of_view = rules.view.as_ref().map_or(CgroupRule::default(), rule);
            (path.clone(), CgroupRule { excluded: of_view.excluded || rules.excluded, ..of_view })
        });
        excluded.chain(configured).chain(created).chain(pods)
    }

    /// Creates a cgroup whose processes see this view, for a command to enter.
    pub fn create_view_cgroup(
        &mut self,
        view: &str,
        views: &BTreeSet<Name>,
        context: &RuleContext<'_>,
    ) -> anyhow::Result<PathBuf> {
        let Some(name) = views.get(view) else {
            let known: Vec<&str> = views.iter().map(|name| &**name).collect();
            match &known[..] {
                [] => anyhow::bail!("there is no view {view}: no cluster of the configuration has a view"),
                known => anyhow::bail!("there is no view {view}; the views are: {}", known.join(", ")),
            }
        };
        let path = self.view_cgroups.create(name)?;
        if let Err(error) = self.apply(context) {
            self.view_cgroups.remove(&path);
            return Err(error).with_context(|| format!("cannot set the view of the cgroup {}", path.display()));
        }
        Ok(path)
    }

    /// Cgroups of the configuration that cannot have a rule, and pods that ask for a view that does not exist.
    pub fn refusals(&self, pod_rules: &[(PathBuf, PodRules)], views: &BTreeSet<Name>) -> Vec<Refusal> {
        let unusable = self.configured.iter().filter_map(|(path, view)| {
            let error = view::rule_error(path)?;
            let message = format!("the view {view} is not applied, because the cgroup {error}; it is checked again");
            Some(Refusal::new(RefusalSubject::Cgroup(path.clone()), RefusalReason::NoCgroup, message))
        });
        let requested = pod_rules.iter().filter_map(|(path, rules)| Some((path, rules.view.as_ref()?)));
        let unknown = requested.filter(|(_, view)| !views.contains(*view)).map(|(path, view)| {
            let message = format!(
                "the pod asks for the view {view}, which no cluster of the configuration has; its dials are not resolved"
            );
            Refusal::new(RefusalSubject::Cgroup(path.clone()), RefusalReason::UnknownView, message)
        });
        unusable.chain(unknown).collect()
    }
}

/// Processes that ask for a view that does not exist are not served: in the default view they could reach another
/// cluster's service.
fn view_rule(planner: &Planner, view: &Name) -> CgroupRule {
    planner.view(view).map_or(CgroupRule::EXCLUDED, |view| CgroupRule { excluded: false, view })
}
