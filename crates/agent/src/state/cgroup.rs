//! What the kernel is told of cgroups: who is left alone, who sees which view, and which pods are members of a policy.

use super::{State, WALK, views_of};
use crate::member::News;
use crate::view;
use anyhow::Context;
use beeline_datapath::control::CgroupRule;
use beeline_model::Name;
use std::path::{Path, PathBuf};
use std::time::Instant;

impl State {
    /// Whoever asks by annotation gets it as soon as it has a cgroup, which comes before its first process. Cgroups may be
    /// made anew under their names (a service that restarts), so they are looked at again and again.
    pub(super) fn settle_rules(&mut self) {
        if std::mem::take(&mut self.asks_open) {
            let (pods, complete) = self.identities.asking();
            (self.pod_rules, self.asks_open) = (pods, !complete);
        }
        self.rooms.sweep();
        if let Err(error) = self.tell_rules() {
            tracing::debug!("cgroups with rules of their own: {error}; tried again");
        }
    }

    fn tell_rules(&mut self) -> beeline_datapath::Result<()> {
        let rules = view::gather(self.wanted_rules());
        let now: Vec<(u64, CgroupRule)> = rules.iter().map(|(_, id, rule)| (*id, *rule)).collect();
        let whole = self.sources.are_whole();
        if self.rules_told.as_ref() == Some(&now) && self.rules_whole == whole {
            return Ok(());
        }
        let rules: Vec<(&Path, CgroupRule)> = rules.iter().map(|(path, _, rule)| (path.as_path(), *rule)).collect();
        // Pods of before are known again only once everything has been listed; what we told ourselves we know.
        if whole {
            self.control.set_rules(&rules)?;
        } else {
            self.control.add_rules(&rules)?;
            let told = self.rules_told.iter().flatten().map(|(id, _)| *id);
            self.control.remove_rules(told.filter(|id| !now.iter().any(|(wanted, _)| wanted == id)));
        }
        (self.rules_told, self.rules_whole) = (Some(now), whole);
        Ok(())
    }

    fn wanted_rules(&self) -> impl Iterator<Item = (PathBuf, CgroupRule)> {
        let untouched = self.settings.untouched.iter().map(|path| (path.clone(), CgroupRule::UNTOUCHED));
        let views = self.views.iter().map(|(path, view)| (path.clone(), self.rule_of(view)));
        let rooms = self.rooms.iter().map(|(path, view)| (path.to_owned(), self.rule_of(view)));
        let pods = self.pod_rules.iter().map(|(path, asked)| {
            let rule = asked.view.as_ref().map_or(CgroupRule::default(), |view| self.rule_of(view));
            (path.clone(), CgroupRule { untouched: rule.untouched || asked.untouched, ..rule })
        });
        untouched.chain(views).chain(rooms).chain(pods)
    }

    /// Whoever asks for a view that there is not is left alone: in everybody's view it might reach a stranger's service.
    fn rule_of(&self, view: &Name) -> CgroupRule {
        let known = self.planner.view(view).map(|view| CgroupRule { untouched: false, view });
        known.unwrap_or(CgroupRule::UNTOUCHED)
    }

    /// A cgroup whose processes see this view, for a command to enter.
    pub fn open_room(&mut self, view: &str) -> anyhow::Result<PathBuf> {
        let names = views_of(&self.settings.listing);
        let Some(name) = names.get(view) else {
            let known: Vec<&str> = names.iter().map(|name| &**name).collect();
            match &known[..] {
                [] => anyhow::bail!("there is no view {view}: no cluster of the configuration has a view"),
                known => anyhow::bail!("there is no view {view}: known are {}", known.join(", ")),
            }
        };
        let path = self.rooms.open(name)?;
        if let Err(error) = self.tell_rules() {
            self.rooms.close(&path);
            return Err(error).context("the kernel does not take its rule");
        }
        Ok(path)
    }

    /// Cgroups of the pods that policies select, as far as they have one by now. At once where somebody else is selected,
    /// else now and then while some are missing.
    pub(super) fn find_members(&mut self) {
        let due = self.members.is_open() && Instant::now() >= self.next_walk;
        if !due && !self.members.is_stirred() {
            return;
        }
        self.next_walk = Instant::now() + WALK;
        for News { uid, cgroup } in self.members.look(&self.settings.cgroup, &self.planner) {
            let told = cgroup.map(|(id, path)| self.tell_level(&path).map(|()| id)).transpose();
            let id = told.unwrap_or_else(|error| self.note_outsider(&uid, &error.to_string()));
            if id.is_some() {
                self.members.succeed(&uid);
            }
            self.planner.set_cgroup(&uid, id);
        }
    }

    /// It would be sent to itself: no member, until another try goes well.
    fn note_outsider(&mut self, uid: &str, why: &str) -> Option<u64> {
        if self.members.fail(uid, why.to_owned()) {
            tracing::warn!("pod {uid} joins no LocalRedirectPolicy: {why}; it is tried again");
        }
        None
    }

    /// Levels at which no member stands any more make room for others. Rows that the plan does not know yet may be of pods
    /// that it does not know either.
    pub(super) fn settle_levels(&self) {
        if !self.sources.are_whole() {
            return;
        }
        let levels = self.members.paths().map(beeline_datapath::cgroup::level).collect::<Result<Vec<_>, _>>();
        if let Err(error) = levels.and_then(|levels| self.control.set_member_levels(levels)) {
            tracing::debug!("levels of pods' cgroups: {error}; those told before hold");
        }
    }

    /// The kernel half must know where to look before somebody is there.
    fn tell_level(&self, path: &Path) -> beeline_datapath::Result<()> {
        self.control.add_member_levels([beeline_datapath::cgroup::level(path)?])
    }
}
